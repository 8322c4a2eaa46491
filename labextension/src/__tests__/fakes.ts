// A server that answers from a table, and kernels for it to tell of.

import type { Event } from '@jupyterlab/services';
import { ServerConnection } from '@jupyterlab/services';
import { Stream } from '@lumino/signaling';

import type {
  KernelView,
  IOperation,
  ListedSession,
  ListedSnapshot,
  SnapshotView,
  UploadView
} from '../shared/records';
import { KERNEL_EVENT_SCHEMA } from '../shared/server-events';
import type { IUserSettings } from '../shared/tokens';
import { UserSettings } from '../shared/user-settings';

/** What the server answers: a JSON body, a status with a body, or a failure of the network. */
export type Answer = object | { status: number; body: string } | TypeError;

export class FakeServer {
  readonly requests: string[] = [];
  /** The bodies of those that had one. */
  readonly bodies: string[] = [];

  /** Answer every request `METHOD path` that follows; a list is used up, its last answer stays. */
  on(request: string, ...answers: Answer[]): this {
    this._answers.set(request, answers);
    return this;
  }

  readonly settings = ServerConnection.makeSettings({
    baseUrl: 'http://server/',
    fetch: async (input, init) => {
      const asked = new Request(input, init);
      const { method, url } = asked;
      const path = url
        .replace(/.*api\/gpuckpt\//, '')
        .replace(/[?&]\d{13}$/, ''); // JupyterLab's way around caches
      const request = `${method} ${path}`;
      this.requests.push(request);
      this.bodies.push(...[await asked.text()].filter(Boolean));
      const answers = this._answers.get(request) ?? [
        { status: 404, body: '<html>' }
      ];
      const answer = answers.length > 1 ? answers.shift()! : answers[0];
      if (answer instanceof TypeError) {
        throw answer;
      }
      return 'status' in answer
        ? new Response(answer.body || null, { status: answer.status })
        : new Response(JSON.stringify(answer));
    }
  });

  private readonly _answers = new Map<string, Answer[]>();
}

/** An event stream that tests emit into. */
export class FakeEvents {
  readonly stream: Event.Stream = new Stream<Event.IManager, Event.Emission>(
    {} as Event.IManager
  );

  tell(kernel: KernelView): void {
    this.emit({ ...kernel, schema_id: KERNEL_EVENT_SCHEMA });
  }

  emit(event: object): void {
    (this.stream as Stream<Event.IManager, Event.Emission>).emit(
      event as Event.Emission
    );
  }
}

export function refused(status: number, record: object): Answer {
  return { status, body: JSON.stringify(record) };
}

const KERNEL: Omit<KernelView, 'kernel_id'> = {
  state: 'starting',
  managed: false,
  reason: null,
  hint: null,
  error_code: null,
  snapshot_id: null,
  operation: null,
  path: '',
  kernel_name: '',
  since: 0,
  failed_at: 0,
  moved_to: null,
  memory_bytes: 0,
  gpu_bytes: 0,
  gpu_utilization: null,
  resume_seconds: null,
  suspended_bytes: 0,
  suspend_cause: null,
  idle_seconds: 0,
  suspends_at: null,
  cells_resume: true,
  restart_save_seconds: 0,
  before_restart: null,
  before_tool: null,
  former_kept: false,
  restart_lost: null,
  cell_paused: false,
  continues_alone: false,
  taken_over: null,
  changed_at: null,
  autosave_seconds: 0,
  parent_snapshot_id: null
};

const SNAPSHOT: Omit<SnapshotView, 'snapshot_id'> = {
  kernel_id: '',
  created: 0,
  reason: 'save',
  cause: 'manual',
  name: '',
  title: '',
  cell: 0,
  in_cell: false,
  has_files: false,
  note: '',
  pinned: false,
  needed: false,
  kernel_live: false,
  variables: [],
  raw_bytes: 0,
  stored_bytes: 0,
  new_bytes: 0,
  gpu_bytes: 0,
  frozen_seconds: 0,
  seconds: 0,
  host_name: '',
  uploads: [],
  remote_only: null
};

export function aKernel(changes: Partial<KernelView> = {}): KernelView {
  return {
    ...KERNEL,
    kernel_id: 'k',
    state: 'running',
    managed: true,
    ...changes
  };
}

export function aSnapshot(changes: Partial<SnapshotView> = {}): SnapshotView {
  return {
    ...SNAPSHOT,
    snapshot_id: 's',
    kernel_id: 'k',
    name: 'work/a.ipynb',
    created: 1000,
    stored_bytes: 412e6,
    new_bytes: 35.4e6,
    ...changes
  };
}

/** The defaults with some choices changed. */
export function chosen(
  changes: Partial<IUserSettings['choices']> = {}
): IUserSettings {
  const settings = new UserSettings();
  return {
    choices: { ...settings.choices, ...changes },
    changed: settings.changed
  };
}

export function aSave(changes: Partial<IOperation> = {}): IOperation {
  return {
    operation_id: 'o',
    kind: 'save',
    kernel_id: 'k',
    state: 'running',
    progress: {
      stage: 'read_pages',
      done_bytes: 0,
      total_bytes: null,
      seconds: 0
    },
    result: null,
    error: null,
    ...changes
  };
}

/** A save that has succeeded; with other `changes`, a suspend. */
export function aDone(changes: Partial<IOperation> = {}): IOperation {
  return aSave({
    state: 'succeeded',
    result: {
      snapshot_id: 's',
      seconds: 0.412,
      frozen_seconds: 0.1834,
      raw_bytes: 999e6,
      stored_bytes: 412e6,
      new_bytes: 35.4e6,
      gpu_bytes: 0,
      warnings: [],
      moved_ports: {}
    },
    ...changes
  });
}

/** A snapshot's way to the remote `team`. */
export function anUpload(changes: Partial<UploadView> = {}): UploadView {
  return {
    remote: 'team',
    state: 'uploaded',
    done_bytes: 0,
    total_bytes: 0,
    error: null,
    ...changes
  };
}

/** What a remote has of a notebook; the snapshots are the newest first. */
export function aRemoteSession(
  changes: Partial<ListedSession> = {},
  ...snapshots: Partial<ListedSnapshot>[]
): ListedSession {
  const made = (snapshots.length > 0 ? snapshots : [{}]).map(snapshot => ({
    snapshot_id: 'offsite',
    kernel_id: 'there',
    created: 1000,
    title: '',
    raw_bytes: 100e6,
    stored_bytes: 40e6,
    here: false,
    stub: false,
    ...snapshot
  }));
  return {
    session_id: 'session',
    host_name: 'laptop',
    hub_user: '',
    server_name: '',
    leased_to: '',
    leased_since: 0,
    runs_here: false,
    moved_at: 0,
    path: 'work/a.ipynb',
    title: '',
    snapshots: made,
    ...changes
  };
}

/** The dialog, as soon as it says so. */
export async function dialog(text: string): Promise<HTMLElement> {
  for (;;) {
    const node = document.querySelector<HTMLElement>('.jp-Dialog');
    if (node?.textContent?.includes(text)) {
      return node;
    }
    await new Promise(resolve => setTimeout(resolve, 5));
  }
}

export function press(shown: HTMLElement, button: 'accept' | 'reject'): void {
  shown.querySelector<HTMLElement>(`button.jp-mod-${button}`)?.click();
}
