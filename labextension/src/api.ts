// The server's REST interface: one request function, one error class.

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import type { JSONObject, JSONValue } from '@lumino/coreutils';

import type {
  IErrorRecord,
  IKernel,
  IOperation,
  OperationKind
} from './protocol';

const NAMESPACE = 'api/gpuckpt';

/** How long the server may hold one question about an operation. */
const WAIT_SECONDS = 20;

/** How often, and how many seconds apart, a lost server is asked again about an operation. */
const RETRIES = 30;
const RETRY_SECONDS = 1;

/** An operation or a request that failed. `code` tells programs what `message` tells people. */
export class GpuCkptError extends Error implements IErrorRecord {
  constructor(record: IErrorRecord) {
    super(record.message);
    this.name = 'GpuCkptError';
    this.code = record.code;
    this.hint = record.hint || null;
    this.details = record.details || null;
  }

  readonly code: string;
  readonly hint: string | null;
  readonly details: JSONValue;

  /** No answer came at all. */
  static readonly UNREACHABLE = 'unreachable';

  /** The answer did not come from our server extension. */
  static readonly NO_EXTENSION = 'no_extension';

  /** The operation was cancelled, e.g. a save by a suspend; the server's word. */
  static readonly CANCELLED = 'operation_cancelled';
}

/**
 * Ask the server.
 *
 * @throws GpuCkptError whatever goes wrong.
 */
export async function request<T>(
  path: string,
  init: RequestInit = {},
  settings = ServerConnection.makeSettings()
): Promise<T> {
  const url = URLExt.join(settings.baseUrl, NAMESPACE, path);
  let response: Response;
  let text: string;
  try {
    response = await ServerConnection.makeRequest(url, init, settings);
    text = await response.text();
  } catch (error) {
    throw new GpuCkptError({
      message: 'The Jupyter server does not answer.',
      code: GpuCkptError.UNREACHABLE,
      hint: null,
      details: String(error)
    });
  }
  const body = parse(text);
  if (response.ok && body !== undefined) {
    return body as T;
  }
  throw new GpuCkptError(
    isErrorRecord(body)
      ? body
      : {
          message: `The Jupyter server answered ${response.status} ${response.statusText}.`,
          code:
            response.status === 404
              ? GpuCkptError.NO_EXTENSION
              : `http_${response.status}`,
          hint: null,
          details: text
        }
  );
}

/** The requests that the user interface makes. */
export class GpuCkptApi {
  constructor(
    private readonly _settings?: ServerConnection.ISettings,
    private readonly _retrySeconds = RETRY_SECONDS
  ) {}

  /** Every kernel of this server. */
  async kernels(): Promise<IKernel[]> {
    const { kernels } = await this._request<{ kernels: IKernel[] }>('kernels');
    return kernels;
  }

  /** One kernel. */
  kernel(kernelId: string): Promise<IKernel> {
    return this._request(`kernels/${encodeURIComponent(kernelId)}`);
  }

  /** Start an operation. */
  start(kind: OperationKind, kernelId: string): Promise<IOperation> {
    return this._request(`kernels/${encodeURIComponent(kernelId)}/${kind}`, {});
  }

  /** Wait until an operation has ended; a server that is away for a while (a restart) is asked again. */
  async finish(operation: IOperation): Promise<IOperation> {
    const path = `operations/${encodeURIComponent(operation.operation_id)}?wait=${WAIT_SECONDS}`;
    let failures = 0;
    while (operation.state === 'running') {
      try {
        operation = await this._request<IOperation>(path);
        failures = 0;
      } catch (error) {
        failures += 1;
        if (!isUnreachable(error) || failures > RETRIES) {
          throw error;
        }
        await new Promise(resolve =>
          setTimeout(resolve, this._retrySeconds * 1000)
        );
      }
    }
    return operation;
  }

  private _request<T>(path: string, body?: JSONObject): Promise<T> {
    const init =
      body === undefined ? {} : { method: 'POST', body: JSON.stringify(body) };
    return request<T>(path, init, this._settings);
  }
}

function isUnreachable(error: unknown): boolean {
  return (
    error instanceof GpuCkptError && error.code === GpuCkptError.UNREACHABLE
  );
}

function isErrorRecord(body: JSONValue | undefined): body is JSONObject & {
  message: string;
  code: string;
  hint: string | null;
} {
  const record = body as Partial<IErrorRecord> | null | undefined;
  return typeof record?.message === 'string' && typeof record.code === 'string';
}

function parse(text: string): JSONValue | undefined {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
