// The section "Suspended kernels" in the Running panel, and their absence from JupyterLab's own sections.

import type {
  IRunningSessionManagers,
  IRunningSessions
} from '@jupyterlab/running';
import type { ServiceManager } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';
import * as React from 'react';

import { suspendIcon } from '../shared/icons';
import type { KernelView } from '../shared/records';
import { kernelName, suspendedTexts } from '../shared/texts';
import type { IKernelStates } from '../shared/tokens';
import { trans } from '../shared/translation';

/** Leave the kernels that are in our section out of all others, which would show them as idle. */
export function listOnce(
  managers: IRunningSessionManagers,
  suspended: SuspendedKernels
): void {
  const leaveOut = (manager: IRunningSessions.IManager) => {
    if (manager === suspended) {
      return;
    }
    const running = manager.running.bind(manager);
    manager.running = options => suspended.without(running(options));
    suspended.runningChanged.connect(() => {
      const changed = manager.runningChanged;
      // Other sections give away signals that are not theirs alone, e.g. that of all terminals.
      if (
        changed instanceof Signal &&
        suspended.hasKernels(running({ mode: 'tree' }))
      ) {
        changed.emit(undefined);
      }
    });
  };
  managers.items().forEach(leaveOut);
  managers.added.connect((_, manager) => leaveOut(manager));
}

export class SuspendedKernels implements IRunningSessions.IManager {
  constructor(
    private readonly _states: IKernelStates,
    private readonly _services: ServiceManager.IManager,
    private readonly _resume: (kernelId: string) => void,
    private readonly _openNotebook: (path: string) => void
  ) {
    this.name = trans.__('Suspended Kernels');
    this.shutdownLabel = trans.__('Discard');
    this.shutdownAllLabel = trans.__('Discard All');
    this.shutdownAllConfirmationText = trans.__(
      'Discard all suspended kernels? Their snapshots stay in the history.'
    );
    _states.changed.connect(() => this._onChanged());
  }

  readonly name: string;
  readonly shutdownLabel: string;
  readonly shutdownAllLabel: string;
  readonly shutdownAllConfirmationText: string;

  readonly runningChanged = new Signal<this, void>(this);

  running(): IRunningSessions.IRunningItem[] {
    return this._suspended.map(kernel => ({
      icon: () => suspendIcon,
      label: () => this._label(kernel),
      labelTitle: () => suspendedTexts(kernel).join(' '),
      open: () =>
        kernel.path.endsWith('.ipynb')
          ? this._openNotebook(kernel.path)
          : this._resume(kernel.kernel_id),
      shutdown: () => void this._end(kernel.kernel_id)
    }));
  }

  /** Return those of JupyterLab's items, and of the items below them, that are not suspended kernels. */
  without(items: IRunningSessions.IRunningItem[]): typeof items {
    const ids = new Set(this._suspended.map(({ kernel_id }) => kernel_id));
    const left = (found: typeof items): typeof items =>
      found
        .filter(({ context }) => !context || !ids.has(context))
        .map(item =>
          item.children?.length
            ? Object.create(item, {
                children: { get: () => left(item.children!) }
              })
            : item
        );
    return ids.size > 0 ? left(items) : items;
  }

  /** Return whether kernels are among JupyterLab's items or the items below them. */
  hasKernels(items: IRunningSessions.IRunningItem[]): boolean {
    return items.some(
      ({ context, children }) =>
        this._states.get(context ?? '') || this.hasKernels(children ?? [])
    );
  }

  refreshRunning(): void {
    void this._states.refreshAll();
  }

  shutdownAll(): void {
    this._suspended.forEach(({ kernel_id }) => void this._end(kernel_id));
  }

  private _label(kernel: KernelView): JSX.Element {
    const name = kernelName(kernel);
    return (
      <span className="jp-GpuCkptRunning">
        <span className="jp-GpuCkptRunning-name">{name}</span>
        <button
          type="button"
          className="jp-GpuCkptLink"
          aria-label={trans.__('Resume %1', name)}
          onClick={event => {
            event.stopPropagation();
            this._resume(kernel.kernel_id);
          }}
        >
          {trans.__('Resume')}
        </button>
      </span>
    );
  }

  /** Shut down a kernel: delete its sessions, or the kernel itself if it has none. */
  private async _end(kernelId: string): Promise<void> {
    const { kernels, sessions } = this._services;
    await sessions.refreshRunning();
    const ofKernel = [...sessions.running()].filter(
      ({ kernel }) => kernel?.id === kernelId
    );
    await Promise.all(ofKernel.map(({ id }) => sessions.shutdown(id)));
    if (ofKernel.length === 0) {
      await kernels.shutdown(kernelId);
    }
  }

  private get _suspended(): KernelView[] {
    return this._states.all().filter(({ state }) => state === 'suspended');
  }

  private _onChanged(): void {
    const shown = JSON.stringify(this._suspended);
    if (shown !== this._shown) {
      this._shown = shown;
      this.runningChanged.emit();
    }
  }

  private _shown = '[]';
}
