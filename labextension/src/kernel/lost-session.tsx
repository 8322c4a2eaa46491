// The banner above a notebook whose session another machine has taken over: its document is not saved until the user decides.
//
// Both machines may use the document of one shared folder: a save here would replace the other machine's.

import { Notification, showErrorMessage } from '@jupyterlab/apputils';
import { PathExt } from '@jupyterlab/coreutils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { Contents } from '@jupyterlab/services';
import * as React from 'react';

import type { GpuCkptApi } from '../shared/api';
import { asOurs, GpuCkptError } from '../shared/api';
import { askText } from '../shared/dialogs';
import { FittedBanner } from '../shared/fitted-banner';
import { kernelIdOf, watchKernel } from '../shared/notebooks';
import { tellFailure } from '../shared/notices';
import type { IKernelStates } from '../shared/tokens';
import { trans } from '../shared/translation';

/** The name of the error by which JupyterLab recognizes a save that its user cancelled, for which it shows no message. */
const CANCELLED_SAVE = 'ModalCancelError';

/** How long the notification of a refused save is shown, in milliseconds. */
const SHOWN = 8000;

export class LostSessionBanner extends FittedBanner {
  constructor(
    private readonly _panel: NotebookPanel,
    private readonly _states: IKernelStates,
    private readonly _api: GpuCkptApi,
    private readonly _contents: Contents.IManager
  ) {
    super();
    this.setHidden(true);
    watchKernel(_panel, _states, () => this._follow());
  }

  dispose(): void {
    this._keepSaving();
    super.dispose();
  }

  protected render(): JSX.Element | null {
    if (this._save === null) {
      return null;
    }
    return (
      <div ref={this.measure} className="jp-GpuCkptBanner-content">
        <span role="alert" className="jp-GpuCkptBanner-text">
          {this._reason}{' '}
          {trans.__(
            'This notebook is not saved until you choose: the other machine may save to the same file.'
          )}
        </span>
        <button
          type="button"
          className="jp-mod-styled jp-mod-accept"
          onClick={() => void this._saveCopy()}
        >
          {trans.__('Save as a Copy…')}
        </button>
        <button
          type="button"
          className="jp-mod-styled"
          onClick={() => void this._choose()}
        >
          {trans.__('Keep Saving Here')}
        </button>
      </div>
    );
  }

  private _follow(): void {
    const kernelId = kernelIdOf(this._panel) ?? '';
    const kernel = this._states.get(kernelId);
    // A notebook keeps its mark when it gets another kernel.
    if (
      kernel?.taken_over &&
      (this._save === null || this._kernelId !== kernelId)
    ) {
      this._kernelId = kernelId;
      this._reason = kernel.taken_over;
      if (this._save === null) {
        this._stopSaving();
      }
      this.setHidden(false);
      this.update();
    } else if (kernel?.taken_over === null && this._kernelId === kernelId) {
      // The user has chosen, here or on another page. Another kernel of the notebook decides nothing.
      this._keepSaving();
    }
  }

  /** Tell the server that the user saves the notebook here; then all pages save it. */
  private async _choose(): Promise<void> {
    const kernelId = this._kernelId;
    try {
      await this._api.keepSaving(kernelId);
    } catch (reason) {
      const error = asOurs(reason);
      if (error.code === GpuCkptError.KERNEL_NOT_FOUND) {
        // It was replaced by one that cannot be saved, of which the server knows nothing.
        this._keepSaving();
        return;
      }
      const headline = trans.__('The choice was not recorded');
      tellFailure('', headline, error);
      return;
    }
    if (kernelIdOf(this._panel) === kernelId) {
      await this._states.refresh(kernelId);
    } else {
      this._keepSaving();
    }
  }

  /** Go on in a copy, with the kernel: the document follows its session there, and the other machine keeps the old path. */
  private async _saveCopy(): Promise<void> {
    const { context } = this._panel;
    const path = await this._newPath();
    const { session } = context.sessionContext;
    const save = this._save;
    if (path === null || save === null) {
      return;
    }
    try {
      if (session === null) {
        // Without a session nothing leads the document to another path.
        await this._contents.save(this._withDrive(path), {
          type: 'notebook',
          format: 'json',
          content: context.model.toJSON()
        });
        Notification.emit(
          trans.__(
            'Saved the copy %1. This notebook has no kernel: open the copy to continue there.',
            path
          ),
          'success',
          { autoClose: SHOWN }
        );
        return;
      }
      await session.setPath(path);
      await session.setName(PathExt.basename(path));
      await save.call(context);
    } catch (error) {
      void showErrorMessage(trans.__('The copy was not saved'), error as Error);
      return;
    }
    await this._choose();
  }

  /** Ask for the path of a copy until there is no such file; return null if the user cancels. */
  private async _newPath(): Promise<string | null> {
    const { path } = this._panel.context;
    const ending = PathExt.extname(path);
    let wanted = this._contents
      .localPath(path)
      .replace(/(\.\w+)?$/, `-copy${ending}`);
    for (;;) {
      const value = await askText(
        trans.__('Save as a Copy'),
        trans.__('The kernel continues in the copy. Path:'),
        trans.__('Save'),
        wanted
      );
      if (!value) {
        return null;
      }
      wanted = value.endsWith(ending) ? value : `${value}${ending}`;
      if (!(await this._exists(this._withDrive(wanted)))) {
        return wanted;
      }
      await showErrorMessage(
        trans.__('%1 exists already', wanted),
        trans.__('Choose another name.')
      );
    }
  }

  /** Return a path on the drive of the document. */
  private _withDrive(path: string): string {
    const drive = this._contents.driveName(this._panel.context.path);
    return drive ? `${drive}:${path}` : path;
  }

  private async _exists(path: string): Promise<boolean> {
    try {
      await this._contents.get(path, { content: false });
      return true;
    } catch {
      return false; // the save tells of any other trouble
    }
  }

  /** Refuse every save of the document. JupyterLab offers no other way to stop the periodic saves of a single document. */
  private _stopSaving(): void {
    const { context } = this._panel;
    this._save = context.save;
    let told = 'none';
    context.save = async () => {
      const message = trans.__(
        '%1 is not saved: choose above the notebook where it is to be saved.',
        this._panel.title.label
      );
      Notification.dismiss(told);
      told = Notification.emit(message, 'warning', { autoClose: SHOWN });
      throw Object.assign(new Error(message), { name: CANCELLED_SAVE });
    };
  }

  private _keepSaving(): void {
    if (this._save !== null) {
      this._panel.context.save = this._save;
      this._save = null;
      this.setHidden(true);
      this.update();
    }
  }

  /** The document's own `save` while it is replaced; else null. */
  private _save: NotebookPanel['context']['save'] | null = null;
  private _reason = '';
  /** The kernel whose session was taken over. */
  private _kernelId = '';
}
