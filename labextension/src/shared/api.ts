// The server's REST interface: one request function, one error class.

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import type { JSONObject, JSONValue } from '@lumino/coreutils';

import type {
  AddedRemote,
  Changes,
  Comparison,
  IErrorRecord,
  FetchEstimate,
  HostReport,
  KernelView,
  NewRemote,
  NoticeView,
  IOperation,
  ProgressRecord,
  PruneReport,
  RemoteState,
  RemoteListing,
  IRemotePlace,
  IRetention,
  ShutDownView,
  SnapshotView,
  StoreView,
  IStoredNotebook,
  TemplatesView,
  TemplateView,
  TriedRemote,
  Verification,
  OperationKind,
  SnapshotChanges
} from './records';

const NAMESPACE = 'api/gpuckpt';

/** The seconds for which the server may delay its answer to one request about an operation, until the operation ends. */
const WAIT_SECONDS = 20;

/** The same while a user sees its progress. */
const WATCH_SECONDS = 1;

/** The number of requests about an operation to a server that does not answer, and the seconds between two. */
const RETRIES = 30;
const RETRY_SECONDS = 1;

/** The error of an operation or a request that failed. `code` is for programs, `message` for people. */
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
  readonly details: string | null;

  /** The code if there was no answer. */
  static readonly UNREACHABLE = 'unreachable';

  /** The code if the answer did not come from this package's server extension. */
  static readonly NO_EXTENSION = 'no_extension';

  /** The server's code for an operation that was cancelled, e.g. a save by a suspend. */
  static readonly CANCELLED = 'operation_cancelled';

  /** The server's code for a session that another machine runs. */
  static readonly SESSION_HELD = 'session_held';

  /** The server's code for a session with which another machine has gone on, so that a remote has a newer snapshot. */
  static readonly SESSION_AHEAD = 'session_ahead';

  /** The server's code for files that changed so that the kernel would end or do harm. */
  static readonly FILES_CHANGED = 'files_changed';

  /** The server's code while no daemon can be started, or if its kernels do not run under the engine at all. */
  static readonly NO_DAEMON = 'daemon_unavailable';

  /** The server has no such kernel. */
  static readonly KERNEL_NOT_FOUND = 'kernel_not_found';
}

/** Return an error of the server or of the connection. Throw any other: it is a defect of this page. */
export function asOurs(error: unknown): GpuCkptError {
  if (!(error instanceof GpuCkptError)) {
    throw error;
  }
  return error;
}

/**
 * Send the server a request and return its answer.
 *
 * @throws GpuCkptError for every failure.
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

  /** Return the doctor's report on the machine of this server. */
  host(): Promise<HostReport> {
    return this._get('host');
  }

  /** Return all kernels of this server. */
  async kernels(): Promise<KernelView[]> {
    return (await this._get<{ kernels: KernelView[] }>('kernels')).kernels;
  }

  /** Return one kernel. */
  kernel(kernelId: string): Promise<KernelView> {
    return this._get(at`kernels/${kernelId}`);
  }

  /** Start an operation on a kernel. */
  start(
    kind: OperationKind,
    kernelId: string,
    body: JSONObject = {}
  ): Promise<IOperation> {
    return this._send('POST', at`kernels/${kernelId}/${kind}`, body);
  }

  /**
   * Start a kernel from a snapshot: `branch`, a second one, with a copy of the notebook; `resume`, the snapshot's own one, for the notebook
   * at `path`, by default for a copy.
   */
  async startFrom(
    kind: 'branch' | 'resume',
    snapshotId: string,
    body: JSONObject
  ): Promise<IOperation> {
    const path = at`snapshots/${snapshotId}/${kind}`;
    // To the server it is the resume of a kernel, which may be new.
    return { ...(await this._send<IOperation>('POST', path, body)), kind };
  }

  /**
   * Make a template of a snapshot, and return it when its kernels can be started. The server goes on with it if the page is closed.
   */
  async makeTemplate(
    name: string,
    snapshotId: string,
    pause_ms = 1000
  ): Promise<TemplateView> {
    const body = { name, snapshot_id: snapshotId };
    let listed = await this._send<TemplatesView>('POST', 'templates', body);
    for (;;) {
      const found = listed.templates.find(one => one.name === name);
      if (found && !found.is_being_built) {
        if (found.error) {
          throw new GpuCkptError(found.error);
        }
        return found;
      }
      await new Promise(resolve => setTimeout(resolve, pause_ms));
      listed = await this._get<TemplatesView>('templates');
    }
  }

  /** Ask a running operation to stop and to undo its work. */
  cancel(operationId: string): Promise<IOperation> {
    return this._send('POST', at`operations/${operationId}/cancel`, {});
  }

  /** Tell the server that a parked kernel's notebook is in front, so that it may be unparked before its next cell. */
  expectCell(kernelId: string): Promise<JSONObject> {
    return this._send('POST', at`kernels/${kernelId}/expect_cell`, {});
  }

  /** Prevent the announced suspend of an idle kernel. */
  keepRunning(kernelId: string): Promise<JSONObject> {
    return this._send('POST', at`kernels/${kernelId}/keep_running`, {});
  }

  /** Save a kernel's notebook here although another machine has taken its session over. */
  keepSaving(kernelId: string): Promise<JSONObject> {
    return this._send('POST', at`kernels/${kernelId}/keep_saving`, {});
  }

  /** Return the kernels whose shutdown can be undone. */
  async shutDowns(): Promise<ShutDownView[]> {
    return (await this._get<{ kernels: ShutDownView[] }>('shut_down')).kernels;
  }

  /** Let the process run on that a kernel had before its last restart, in place of the new one. */
  undoRestart(kernelId: string): Promise<JSONObject> {
    return this._send('POST', at`kernels/${kernelId}/undo_restart`, {});
  }

  /** Undo a kernel's shutdown. */
  undoShutdown(kernelId: string): Promise<JSONObject> {
    return this._send('POST', at`kernels/${kernelId}/undo_shutdown`, {});
  }

  /** Wait for the end of an operation; repeat the request if the server does not answer for a while, e.g. during a restart. */
  async finish(
    operation: IOperation,
    onProgress?: (progress: ProgressRecord) => void
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

  /** Return the user's snapshots, newest first. */
  async snapshots(): Promise<SnapshotView[]> {
    return (await this._get<{ snapshots: SnapshotView[] }>('snapshots'))
      .snapshots;
  }

  /** Change a snapshot's title, note or pin. */
  change(snapshotId: string, changes: SnapshotChanges): Promise<SnapshotView> {
    return this._send('PATCH', at`snapshots/${snapshotId}`, changes);
  }

  /** Delete a snapshot, which can be undone for a while. */
  delete(snapshotId: string): Promise<null> {
    return this._send('DELETE', at`snapshots/${snapshotId}`);
  }

  /** Undo a snapshot's deletion. */
  undelete(snapshotId: string): Promise<SnapshotView> {
    return this._send('POST', at`snapshots/${snapshotId}/undelete`, {});
  }

  /** Delete, for good, the snapshots that a policy does not keep; with `dryRun` only list them. */
  prune(policy: IRetention, dryRun: boolean): Promise<PruneReport> {
    const body = { policy: { ...policy }, dry_run: dryRun };
    return this._send('POST', 'snapshots/prune', body);
  }

  /** Read all of a snapshot and compare it with its digests. */
  verify(snapshotId: string): Promise<Verification> {
    return this._send('POST', at`snapshots/${snapshotId}/verify`, {});
  }

  /** Return the URL from which a browser downloads a snapshot. `name`: the file's name without its suffix. */
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

  /** Return the changes, since a snapshot, of the files that its kernel had open. */
  changes(snapshotId: string): Promise<Changes> {
    return this._get(at`snapshots/${snapshotId}/changes`);
  }

  /** Return the notebook in a snapshot. */
  storedNotebook(snapshotId: string): Promise<IStoredNotebook> {
    return this._get(at`snapshots/${snapshotId}/notebook`);
  }

  /** Compare a snapshot's variables with those of a kernel now. */
  compare(snapshotId: string, kernelId: string): Promise<Comparison> {
    const path = at`snapshots/${snapshotId}/compare`;
    return this._get(`${path}${at`?kernel_id=${kernelId}`}`);
  }

  /** Return the remotes in their last known state; the server sends no request to any of them. */
  async remotes(): Promise<RemoteState[]> {
    return (await this._get<{ remotes: RemoteState[] }>('remotes')).remotes;
  }

  /** Test a place for a remote; nothing is added. */
  tryRemote(remote: NewRemote): Promise<TriedRemote> {
    return this._send('POST', 'remotes/test', { ...remote });
  }

  /** Add a remote, with a new store or, if it `joins`, with the one that is there. */
  addRemote(remote: NewRemote): Promise<AddedRemote> {
    return this._send('POST', 'remotes', { ...remote });
  }

  /** Make a new line by which other machines join a remote. */
  joinLine(remote: string): Promise<AddedRemote> {
    return this._send('POST', at`remotes/${remote}/line`, {});
  }

  /** Return the snapshots in a remote, by session. */
  remoteSessions(remote: string): Promise<RemoteListing> {
    return this._get(at`remotes/${remote}/sessions`);
  }

  /** Return the size of a fetch, and the obstacles to resuming the kernel here. */
  fetchEstimate(place: IRemotePlace): Promise<FetchEstimate> {
    return this._get(
      `${remotePath(place)}${at`?session_id=${place.sessionId}`}`
    );
  }

  /** Start fetching a snapshot. `force`: even if its kernel could not be resumed here. `take_over`: even if another machine runs its session. */
  fetch(
    place: IRemotePlace,
    options: { force: boolean; take_over: boolean }
  ): Promise<IOperation> {
    const body = { session_id: place.sessionId, ...options };
    return this._send('POST', `${remotePath(place)}/fetch`, body);
  }

  /** Return the notices that this machine will go. */
  async notices(): Promise<NoticeView[]> {
    return (await this._get<{ notices: NoticeView[] }>('notices')).notices;
  }

  /** Return the disk use of the store. */
  store(): Promise<StoreView> {
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

/** The statuses with which Jupyter itself answers for a missing route or method. */
const NOT_OURS = [404, 405];

/** Return a path with its parts encoded. */
function at(texts: TemplateStringsArray, ...parts: string[]): string {
  return texts.reduce(
    (path, text, index) => path + encodeURIComponent(parts[index - 1]) + text
  );
}

function remotePath({ remote, snapshotId }: IRemotePlace): string {
  return at`remotes/${remote}/snapshots/${snapshotId}`;
}

function isUnreachable(error: unknown): boolean {
  return (
    error instanceof GpuCkptError && error.code === GpuCkptError.UNREACHABLE
  );
}

function isErrorRecord(
  body: JSONValue | undefined
): body is JSONObject & IErrorRecord {
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
