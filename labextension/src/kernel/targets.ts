// The kernel on which a command works: that of a notebook or console, of a row in a panel, or of a file.

import type { INotebookTracker } from '@jupyterlab/notebook';
import type { Session } from '@jupyterlab/services';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import type { Widget } from '@lumino/widgets';

import { nameOfPath } from '../shared/format';
import { hasSession, kernelIdOf } from '../shared/notebooks';
import { kernelName } from '../shared/texts';
import type { IKernelStates } from '../shared/tokens';

/** The kernel on which a command works. */
export interface ITarget {
  kernelId: string | null;
  /** The name of the kernel for users. */
  name: string;
}

/** The arguments of every command on a kernel, as a JSON schema. */
export const ARGUMENTS = {
  type: 'object' as const,
  properties: {
    kernelId: {
      type: 'string' as const,
      description:
        'The id of a kernel; that of the current notebook or console by default.'
    },
    panelId: {
      type: 'string' as const,
      description: 'The id of a notebook panel whose kernel is meant.'
    },
    selectedFile: {
      type: 'boolean' as const,
      description:
        'Whether the kernel of the file selected in the file browser is meant.'
    },
    path: {
      type: 'string' as const,
      description: 'The path of a notebook whose kernel is meant.'
    }
  }
};

export class Targets {
  constructor(
    private readonly _states: IKernelStates,
    private readonly _tracker: INotebookTracker | null,
    private readonly _sessions: Session.IManager,
    private readonly _selectedPath: () => string | null,
    /** Returns the panel in front, which may be neither a notebook nor a console. */
    private readonly _current: () => Widget | null
  ) {}

  /** Return the kernel on which a command with these arguments works. */
  of(args: ReadonlyPartialJSONObject): ITarget {
    if (typeof args.kernelId === 'string') {
      return this._ofKernel(args.kernelId);
    }
    if (typeof args.path === 'string') {
      return this._ofPath(args.path);
    }
    if (args.selectedFile) {
      return this._ofPath(this._selectedPath() ?? '');
    }
    const panel = this._panel(args.panelId);
    return { kernelId: kernelIdOf(panel), name: panel?.title.label ?? '' };
  }

  private _ofKernel(kernelId: string): ITarget {
    const kernel = this._states.get(kernelId);
    const session = [...this._sessions.running()].find(
      ({ kernel }) => kernel?.id === kernelId
    );
    return {
      kernelId,
      name: kernel?.path
        ? kernelName(kernel)
        : nameOfPath(session?.path ?? kernelId.slice(0, 8))
    };
  }

  private _ofPath(path: string): ITarget {
    const session = [...this._sessions.running()].find(
      session => session.path === path
    );
    return {
      kernelId: session?.kernel?.id ?? null,
      name: nameOfPath(path)
    };
  }

  /** Return the notebook of this id; without an id the notebook or console in front, else the notebook that was in front last. */
  private _panel(panelId: unknown) {
    const tracker = this._tracker;
    if (typeof panelId === 'string') {
      return tracker?.find(panel => panel.id === panelId) ?? null;
    }
    const current = this._current();
    return hasSession(current) ? current : (tracker?.currentWidget ?? null);
  }
}
