// The user's snapshots: requested when they are shown, then kept up to date by the event stream.

import type { Event } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import { DisposableDelegate } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';

import type { GpuCkptApi } from '../shared/api';
import { GpuCkptError } from '../shared/api';
import type { ISnapshot, IStore, SnapshotChanges } from '../shared/records';
import { isEndEvent, isSnapshotEvent } from '../shared/server-events';
import type { ISnapshots } from '../shared/tokens';

/** The interval, in seconds, at which the list is requested while a snapshot is being uploaded and the list is shown. */
const UPLOAD_SECONDS = 3;

export class Snapshots implements ISnapshots, IDisposable {
  constructor(
    readonly api: GpuCkptApi,
    private readonly _stream: Event.Stream
  ) {
    this._stream.connect(this._onEvent, this);
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get list(): readonly ISnapshot[] | null {
    return this._list;
  }

  get store(): IStore | null {
    return this._store;
  }

  get problem(): GpuCkptError | null {
    return this._problem;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  watch(): IDisposable {
    this._watchers += 1;
    void this.refresh();
    return new DisposableDelegate(() => {
      this._watchers -= 1;
    });
  }

  async find(snapshotId: string): Promise<ISnapshot | undefined> {
    const known = this._get(snapshotId);
    if (known === undefined) {
      await this.refresh();
    }
    return known ?? this._get(snapshotId);
  }

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

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      this._stream.disconnect(this._onEvent, this);
      clearTimeout(this._timer ?? undefined);
      Signal.clearData(this);
    }
  }

  private async _ask(): Promise<void> {
    try {
      this._list = await this.api.snapshots();
      this._problem = null;
      this._changed.emit();
      // An older server has snapshots, but no route for the size of its store.
      this._store = await this.api.store().catch(() => null);
    } catch (error) {
      if (!(error instanceof GpuCkptError)) {
        throw error;
      }
      this._problem = error;
    }
    this._changed.emit();
    this._followUploads();
  }

  /** Request the list periodically during an upload, because no event reports its progress. */
  private _followUploads(): void {
    const isUploading = this._list?.some(({ uploads }) =>
      uploads.some(({ state }) => state === 'uploading')
    );
    if (isUploading && this._timer === null) {
      this._timer = setTimeout(() => {
        this._timer = null;
        if (this._watchers > 0 && !this._isDisposed) {
          void this.refresh();
        }
      }, UPLOAD_SECONDS * 1000);
    }
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

  private _get(snapshotId: string): ISnapshot | undefined {
    return this._list?.find(({ snapshot_id }) => snapshot_id === snapshotId);
  }

  private _replace(snapshotId: string, by: ISnapshot | null): void {
    this._list =
      this._list?.flatMap(known =>
        known.snapshot_id !== snapshotId ? [known] : by ? [by] : []
      ) ?? null;
    this._changed.emit();
  }

  private _list: ISnapshot[] | null = null;
  private _store: IStore | null = null;
  private _problem: GpuCkptError | null = null;
  private _watchers = 0;
  private _timer: ReturnType<typeof setTimeout> | null = null;
  /** The request in flight, and the next one, which waits for its end. */
  private _current: Promise<void> = Promise.resolve();
  private _next: Promise<void> | null = null;
  private readonly _changed = new Signal<this, void>(this);
  private _isDisposed = false;
}
