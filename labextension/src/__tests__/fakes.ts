// A server that answers from a table, and kernels for it to tell of.

import type { Event } from '@jupyterlab/services';
import { ServerConnection } from '@jupyterlab/services';
import { Stream } from '@lumino/signaling';

import type { IFarSession, IFarSnapshot, IUpload } from '../far-protocol';
import type { IKernel, IOperation, ISnapshot } from '../protocol';
import { asKernel, asSnapshot } from '../protocol';
import { KERNEL_EVENT_SCHEMA } from '../server-events';
import type { IChoices, IUserSettings } from '../tokens';
import { UserSettings } from '../user-settings';

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

  tell(kernel: IKernel): void {
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

export function aKernel(changes: Partial<IKernel> = {}): IKernel {
  return asKernel({
    kernel_id: 'k',
    state: 'running',
    managed: true,
    ...changes
  });
}

export function aSnapshot(changes: Partial<ISnapshot> = {}): ISnapshot {
  return asSnapshot({
    snapshot_id: 's',
    kernel_id: 'k',
    name: 'work/a.ipynb',
    created: 1000,
    stored_bytes: 412e6,
    new_bytes: 35.4e6,
    ...changes
  });
}

/** The defaults with some choices changed. */
export function chosen(changes: Partial<IChoices> = {}): IUserSettings {
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
      gpu_bytes: 0
    },
    ...changes
  });
}

/** A snapshot's way to the remote `team`. */
export function anUpload(changes: Partial<IUpload> = {}): IUpload {
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
export function aFarSession(
  changes: Partial<IFarSession> = {},
  ...snapshots: Partial<IFarSnapshot>[]
): IFarSession {
  const made = (snapshots.length > 0 ? snapshots : [{}]).map(snapshot => ({
    snapshot_id: 'far',
    kernel_id: 'there',
    created: 1000,
    title: '',
    raw_bytes: 100e6,
    stored_bytes: 40e6,
    here: false,
    ...snapshot
  }));
  return {
    session_id: 'session',
    host_name: 'laptop',
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
