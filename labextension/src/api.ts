// The server's REST interface: one request function, one error class.

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import type { JSONObject, JSONValue } from '@lumino/coreutils';

import type {
  IFarListing,
  IFarPlace,
  IFetchEstimate,
  IRemote
} from './far-protocol';
import type {
  IChanges,
  IComparison,
  IErrorRecord,
  IKernel,
  INotice,
  IOperation,
  IProgress,
  IShutDown,
  ISnapshot,
  IStore,
  IVerification,
  OperationKind,
  SnapshotChanges
} from './protocol';
import { asKernel, asSnapshot } from './protocol';

const NAMESPACE = 'api/gpuckpt';

/** How long the server may hold one question about an operation. */
const WAIT_SECONDS = 20;

/** The same while a user watches its progress. */
const WATCH_SECONDS = 1;

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

  /** Another machine runs the session. */
  static readonly SESSION_HELD = 'session_held';

  /** Another machine has taken the session over. */
  static readonly SESSION_LOST = 'session_lost';
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
    text = response.status === NO_CONTENT ? 'null' : await response.text();
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
          code: NOT_OURS.includes(response.status)
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
    private readonly _settings = ServerConnection.makeSettings(),
    private readonly _retrySeconds = RETRY_SECONDS
  ) {}

  /** Every kernel of this server. */
  async kernels(): Promise<IKernel[]> {
    const { kernels } = await this._get<{ kernels: IKernel[] }>('kernels');
    return kernels.map(asKernel);
  }

  /** One kernel. */
  async kernel(kernelId: string): Promise<IKernel> {
    return asKernel(await this._get(at`kernels/${kernelId}`));
  }

  /** Start an operation on a kernel. */
  start(
    kind: OperationKind,
    kernelId: string,
    body: JSONObject = {}
  ): Promise<IOperation> {
    return this._send('POST', at`kernels/${kernelId}/${kind}`, body);
  }

  /** Start a second kernel from a snapshot, in a notebook; by default in a copy of its own. */
  async branch(snapshotId: string, notebook = ''): Promise<IOperation> {
    const path = at`snapshots/${snapshotId}/branch`;
    const body: JSONObject = notebook ? { path: notebook } : {};
    // What is left to do then is the resume of a new kernel.
    return {
      ...(await this._send<IOperation>('POST', path, body)),
      kind: 'branch'
    };
  }

  /** Ask a running operation to stop and to undo what it did. */
  cancel(operationId: string): Promise<IOperation> {
    return this._send('POST', at`operations/${operationId}/cancel`, {});
  }

  /** Keep an idle kernel from being suspended for now. */
  keepRunning(kernelId: string): Promise<JSONObject> {
    return this._send('POST', at`kernels/${kernelId}/keep_running`, {});
  }

  /** The kernels whose shutdown can be undone. */
  async shutDowns(): Promise<IShutDown[]> {
    return (await this._get<{ kernels: IShutDown[] }>('shut_down')).kernels;
  }

  /** Take a kernel's shutdown back. */
  undoShutdown(kernelId: string): Promise<JSONObject> {
    return this._send('POST', at`kernels/${kernelId}/undo_shutdown`, {});
  }

  /** Wait until an operation has ended; a server that is away for a while (a restart) is asked again. */
  async finish(
    operation: IOperation,
    onProgress?: (progress: IProgress) => void
  ): Promise<IOperation> {
    const wait = onProgress ? WATCH_SECONDS : WAIT_SECONDS;
    const path = `${at`operations/${operation.operation_id}`}?wait=${wait}`;
    let failures = 0;
    while (operation.state === 'running') {
      onProgress?.(operation.progress);
      try {
        operation = await this._get<IOperation>(path);
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

  /** The user's snapshots, newest first. */
  async snapshots(): Promise<ISnapshot[]> {
    const { snapshots } = await this._get<{ snapshots: ISnapshot[] }>(
      'snapshots'
    );
    return snapshots.map(asSnapshot);
  }

  /** Change a snapshot's title, note or pin. */
  async change(
    snapshotId: string,
    changes: SnapshotChanges
  ): Promise<ISnapshot> {
    const path = at`snapshots/${snapshotId}`;
    return asSnapshot(await this._send('PATCH', path, changes));
  }

  /** Delete a snapshot; that can be undone for a while. */
  delete(snapshotId: string): Promise<null> {
    return this._send('DELETE', at`snapshots/${snapshotId}`);
  }

  /** Take a snapshot's deletion back. */
  async undelete(snapshotId: string): Promise<ISnapshot> {
    const path = at`snapshots/${snapshotId}/undelete`;
    return asSnapshot(await this._send('POST', path, {}));
  }

  /** Read a snapshot completely and compare it with its digests. */
  verify(snapshotId: string): Promise<IVerification> {
    return this._send('POST', at`snapshots/${snapshotId}/verify`, {});
  }

  /** Where a browser downloads a snapshot; `name`: that of the file, without its suffix. */
  exportUrl(snapshotId: string, name: string): string {
    const path = at`snapshots/${snapshotId}/export?name=${name}`;
    return URLExt.join(this._settings.baseUrl, NAMESPACE, path);
  }

  /** Import an exported archive into the store. */
  async import(file: Blob): Promise<void> {
    await request<JSONValue>(
      'snapshots/import',
      {
        method: 'POST',
        body: file,
        headers: { 'Content-Type': 'application/x-tar' }
      },
      this._settings
    );
  }

  /** The changes since a snapshot of the files that its kernel had open. */
  changes(snapshotId: string): Promise<IChanges> {
    return this._get(at`snapshots/${snapshotId}/changes`);
  }

  /** A snapshot's variables beside those of a kernel now. */
  compare(snapshotId: string, kernelId: string): Promise<IComparison> {
    const path = at`snapshots/${snapshotId}/compare`;
    return this._get(`${path}${at`?kernel_id=${kernelId}`}`);
  }

  /** The remotes, as they were when they were last tried; none is asked. */
  async remotes(): Promise<IRemote[]> {
    return (await this._get<{ remotes: IRemote[] }>('remotes')).remotes;
  }

  /** The snapshots in a remote, by session. */
  farSessions(remote: string): Promise<IFarListing> {
    return this._get(at`remotes/${remote}/sessions`);
  }

  /** The size of a fetch, and the obstacles to resuming the kernel here. */
  fetchEstimate(place: IFarPlace): Promise<IFetchEstimate> {
    return this._get(`${farPath(place)}${at`?session_id=${place.sessionId}`}`);
  }

  /**
   * Start bringing a snapshot here; with `force` although it could not be resumed here, with `takeOver` although another machine
   * may run its session.
   */
  fetch(
    place: IFarPlace,
    force: boolean,
    takeOver = false
  ): Promise<IOperation> {
    const body: JSONObject = { session_id: place.sessionId, force };
    if (takeOver) {
      body.take_over = true;
    }
    return this._send('POST', `${farPath(place)}/fetch`, body);
  }

  /** The notices that this machine will go. */
  async notices(): Promise<INotice[]> {
    return (await this._get<{ notices: INotice[] }>('notices')).notices;
  }

  /** The disk use of the store. */
  store(): Promise<IStore> {
    return this._get('store');
  }

  private _get<T>(path: string): Promise<T> {
    return request<T>(path, {}, this._settings);
  }

  private _send<T>(
    method: 'POST' | 'PATCH' | 'DELETE',
    path: string,
    body?: JSONObject
  ): Promise<T> {
    const init = { method, body: body && JSON.stringify(body) };
    return request<T>(path, init, this._settings);
  }
}

const NO_CONTENT = 204;

/** What Jupyter itself answers where there is no route, or none for a method. */
const NOT_OURS = [404, 405];

/** A path with its parts encoded. */
function at(texts: TemplateStringsArray, ...parts: string[]): string {
  return texts.reduce(
    (path, text, index) => path + encodeURIComponent(parts[index - 1]) + text
  );
}

function farPath({ remote, snapshotId }: IFarPlace): string {
  return at`remotes/${remote}/snapshots/${snapshotId}`;
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
