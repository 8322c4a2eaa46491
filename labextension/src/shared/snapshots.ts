// The user's snapshots: requested when they are shown, then kept up to date by the event stream.

import type { Event } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import { DisposableDelegate } from '@lumino/disposable';
import { Poll } from '@lumino/polling';
import { Signal } from '@lumino/signaling';

import type { GpuCkptApi, GpuCkptError } from './api';
import { asOurs } from './api';
import type { SnapshotView, StoreView, SnapshotChanges } from './records';
import { isEndEvent, isSnapshotEvent } from './server-events';

/** The interval, in seconds, at which the list is requested while a snapshot is being uploaded and the list is shown. */
const UPLOAD_SECONDS = 3;

/** The user's snapshots and their store, kept up to date while they are watched. */
export class Snapshots {
  constructor(
    /** The interface for requests whose results are not kept here. */
    readonly api: GpuCkptApi,
    stream: Event.Stream
  ) {
    stream.connect(this._onEvent, this);
  }

  /** A signal for changes of the list or the store. */
  readonly changed = new Signal<this, void>(this);

  /** The snapshots, newest first; null before the first answer of the server. */
  list: readonly SnapshotView[] | null = null;

  /** The disk use of the store; null while it is not known. */
  store: StoreView | null = null;

  /** The error of the last request; null if it succeeded. */
  problem: GpuCkptError | null = null;

  /** Request the snapshots and follow the server's events, until the result is disposed. */
  watch(): IDisposable {
    this._watchers += 1;
    void this.refresh();
    void this._uploads.start();
    return new DisposableDelegate(() => {
      this._watchers -= 1;
      if (this._watchers === 0) {
        void this._uploads.stop();
      }
    });
  }

  /** Return the snapshot of this id; request the list if it is not known. */
  async find(snapshotId: string): Promise<SnapshotView | undefined> {
    const known = this._get(snapshotId);
    if (known === undefined) {
      await this.refresh();
    }
    return known ?? this._get(snapshotId);
  }

  /** Request the snapshots again, because events may have been lost. */
  refresh(): Promise<void> {
    // One request at a time: the next one covers all changes made meanwhile.
    this._next ??= this._current.then(() => {
      this._next = null;
      this._current = this._ask();
      return this._current;
    });
    return this._next;
  }

  async change(snapshotId: string, changes: SnapshotChanges): Promise<void> {
    this._replace(snapshotId, await this.api.change(snapshotId, changes));
  }

  async delete(snapshotId: string): Promise<void> {
    await this.api.delete(snapshotId);
    this._replace(snapshotId, null);
  }

  async undelete(snapshotId: string): Promise<void> {
    await this.api.undelete(snapshotId);
    await this.refresh();
  }

  async import(file: Blob): Promise<void> {
    await this.api.import(file);
    await this.refresh();
  }

  private async _ask(): Promise<void> {
    try {
      this.list = await this.api.snapshots();
      this.problem = null;
      this.changed.emit();
      this.store = await this.api.store().catch(() => null);
    } catch (error) {
      this.problem = asOurs(error);
    }
    this.changed.emit();
  }

  private get _isUploading(): boolean {
    return !!this.list?.some(({ uploads }) =>
      uploads.some(({ state }) => state === 'uploading')
    );
  }

  private _onEvent(_: Event.IManager, event: Event.Emission): void {
    if (isSnapshotEvent(event) && event.change === 'removed') {
      this._replace(event.snapshot_id, null);
    }
    const made = isEndEvent(event) && event.state === 'succeeded';
    if (this._watchers > 0 && (made || isSnapshotEvent(event))) {
      void this.refresh();
    }
  }

  private _get(snapshotId: string): SnapshotView | undefined {
    return this.list?.find(({ snapshot_id }) => snapshot_id === snapshotId);
  }

  private _replace(snapshotId: string, by: SnapshotView | null): void {
    this.list =
      this.list?.flatMap(known =>
        known.snapshot_id !== snapshotId ? [known] : by ? [by] : []
      ) ?? null;
    this.changed.emit();
  }

  /** The requests during an upload, because no event reports its progress. */
  private readonly _uploads = new Poll({
    name: 'jupyter-gpuckpt:uploads',
    auto: false,
    factory: () => this.refresh(),
    frequency: { interval: UPLOAD_SECONDS * 1000, backoff: false },
    standby: () => !this._isUploading
  });
  private _watchers = 0;
  /** The request in flight, and the next one, which waits for its end. */
  private _current: Promise<void> = Promise.resolve();
  private _next: Promise<void> | null = null;
}
