// The side panel "Sessions". Its content is loaded when the panel is shown.

import { ReactWidget } from '@jupyterlab/apputils';
import type { IDisposable } from '@lumino/disposable';
import type { Message } from '@lumino/messaging';
import { Poll } from '@lumino/polling';
import * as React from 'react';

import { sessionsIcon } from './shared/icons';
import type { IRemotes } from './remote/remotes';
import type { IPanelContext } from './shared/tokens';
import { trans } from './shared/translation';

/** The interval, in milliseconds, at which the visible panel checks whether remotes must be asked again. */
const LOOK = 20000;

/** The command that opens the panel, and shows the kernel `kernelId` if that is given. */
export const showSessionsId = 'gpuckpt:show-sessions';

const SessionsView = React.lazy(() => import('./sessions-view'));

export class SessionsPanel extends ReactWidget {
  constructor(private readonly _context: SessionsPanel.IContext) {
    super();
    const { states, snapshots } = _context;
    this.id = 'jp-gpuckpt-sessions';
    this.addClass('jp-GpuCkptSessions');
    this.title.icon = sessionsIcon;
    this.title.caption = trans.__('Sessions');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('Sessions'));
    this.node.addEventListener('keydown', event => {
      if (event.key === 'Escape' && !event.defaultPrevented) {
        _context.leave();
      }
    });
    states.changed.connect(this._follow, this);
    snapshots.changed.connect(this._follow, this);
    _context.remotes.changed.connect(this._follow, this);
    this._looks = new Poll({
      name: 'jupyter-gpuckpt:remotes',
      factory: () => _context.remotes.look(),
      frequency: { interval: LOOK, backoff: false },
      standby: () => !this.isVisible || document.hidden
    });
  }

  /** Show this kernel and its snapshots. */
  reveal(kernelId: string | null): void {
    this._revealed = { kernelId };
    this.update();
  }

  dispose(): void {
    const { states, snapshots, remotes } = this._context;
    states.changed.disconnect(this._follow, this);
    snapshots.changed.disconnect(this._follow, this);
    remotes.changed.disconnect(this._follow, this);
    this._watching?.dispose();
    this._looks.dispose();
    super.dispose();
  }

  protected render(): JSX.Element | null {
    return this._watching === null ? null : (
      <React.Suspense fallback={null}>
        <SessionsView context={this._context} revealed={this._revealed} />
      </React.Suspense>
    );
  }

  // A restored layout may attach the panel while it is visible.
  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    if (this.isVisible) {
      this._watch();
    }
  }

  protected onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._watch();
  }

  protected onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this._watching?.dispose();
    this._watching = null;
  }

  private _watch(): void {
    this._watching ??= this._context.snapshots.watch();
    void this._context.remotes.look();
    this.update();
  }

  private _follow(): void {
    if (this.isVisible) {
      this.update();
    }
  }

  /** A new object for each request to show a kernel. */
  private _revealed: SessionsPanel.IRevealed = { kernelId: null };
  private _watching: IDisposable | null = null;
  private readonly _looks: Poll;
}

export namespace SessionsPanel {
  export interface IContext extends IPanelContext {
    remotes: IRemotes;
    /** Give the focus back to the notebook. */
    leave: () => void;
  }

  export interface IRevealed {
    kernelId: string | null;
  }
}
