// Notices that the machine of this server will go: requested once, then kept up to date by the event stream.

import type { Event } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';

import type { GpuCkptApi } from '../shared/api';
import { asOurs, GpuCkptError } from '../shared/api';
import type { NoticeView } from '../shared/records';
import { isNoticeEvent } from '../shared/server-events';

/** A notice, with its deadline on the page's own clock in milliseconds; null: not known. */
export interface IStanding {
  notice: NoticeView;
  endsAt: number | null;
}

export class MachineNotices {
  constructor(
    private readonly _api: GpuCkptApi,
    stream: Event.Stream,
    /** A clock that cannot be set. */
    private readonly _now: () => number = () => performance.now()
  ) {
    stream.connect(this._onEvent, this);
  }

  readonly changed = new Signal<this, void>(this);

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

  /** Request the notices; return whether the server has answered, even if with an error. */
  async refresh(): Promise<boolean> {
    try {
      const notices = await this._api.notices();
      this._standing.clear();
      notices.forEach(notice => this._note(notice));
      this.changed.emit();
      return true;
    } catch (error) {
      return asOurs(error).code !== GpuCkptError.UNREACHABLE;
    }
  }

  private _onEvent(_: Event.IManager, event: Event.Emission): void {
    if (isNoticeEvent(event)) {
      this._note(event);
      this.changed.emit();
    }
  }

  private _note(notice: NoticeView): void {
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
}
