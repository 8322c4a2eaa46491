// Notices that the machine of this server will go: requested once, then kept up to date by the event stream.

import type { Event } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';

import type { GpuCkptApi } from '../shared/api';
import { GpuCkptError } from '../shared/api';
import type { INotice } from '../shared/records';
import { isNoticeEvent } from '../shared/server-events';

/** A notice, with its deadline on the page's own clock in milliseconds; null: not known. */
export interface IStanding {
  notice: INotice;
  endsAt: number | null;
}

export class MachineNotices implements IDisposable {
  constructor(
    private readonly _api: GpuCkptApi,
    private readonly _stream: Event.Stream,
    /** A clock that cannot be set. */
    private readonly _now: () => number = () => performance.now()
  ) {
    this._stream.connect(this._onEvent, this);
    this.ready = this.refresh().then(() => undefined);
  }

  /** Resolves after the first request to the server, even if that failed. */
  readonly ready: Promise<void>;

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** The notice with the nearest deadline; null if there is none. */
  get soonest(): IStanding | null {
    const atLast = ({ endsAt }: IStanding) => endsAt ?? Infinity;
    const sorted = [...this._standing.values()].sort((one, other) =>
      atLast(one) < atLast(other) ? -1 : 1
    );
    return sorted[0] ?? null;
  }

  /** Return the seconds until a notice's deadline; null: not known. */
  secondsLeft({ endsAt }: IStanding): number | null {
    return endsAt === null ? null : Math.max(0, (endsAt - this._now()) / 1000);
  }

  /** Request the notices; return whether the server has answered, even if with an error, as an older server does. */
  async refresh(): Promise<boolean> {
    try {
      const notices = await this._api.notices();
      this._standing.clear();
      notices.forEach(notice => this._note(notice));
      this._changed.emit();
      return true;
    } catch (error) {
      if (!(error instanceof GpuCkptError)) {
        throw error;
      }
      return error.code !== GpuCkptError.UNREACHABLE;
    }
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      this._stream.disconnect(this._onEvent, this);
      Signal.clearData(this);
    }
  }

  private _onEvent(_: Event.IManager, event: Event.Emission): void {
    if (isNoticeEvent(event)) {
      this._note(event);
      this._changed.emit();
    }
  }

  private _note(notice: INotice): void {
    if (notice.withdrawn) {
      this._standing.delete(notice.id);
      return;
    }
    const { seconds_left } = notice;
    const endsAt =
      seconds_left === null ? null : this._now() + 1000 * seconds_left;
    this._standing.set(notice.id, { notice, endsAt });
  }

  private readonly _standing = new Map<string, IStanding>();
  private readonly _changed = new Signal<this, void>(this);
  private _isDisposed = false;
}
