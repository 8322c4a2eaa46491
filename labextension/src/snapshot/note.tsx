// The dialog to edit a snapshot's note.

import { Dialog, ReactWidget, showDialog } from '@jupyterlab/apputils';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import type { SnapshotView } from '../shared/records';
import { snapshotTitle } from './snapshot-texts';
import { trans } from '../shared/translation';

/** Let the user edit a snapshot's note and return it; null if they cancel. */
export async function editNote(snapshot: SnapshotView): Promise<string | null> {
  const { button, value } = await showDialog({
    title: trans.__('Note on %1', snapshotTitle(snapshot)),
    body: new NoteEditor(snapshot.note, trans.__('Note')),
    focusNodeSelector: 'textarea',
    buttons: [
      Dialog.cancelButton(),
      Dialog.okButton({ label: trans.__('Save') })
    ]
  });
  return button.accept ? (value ?? '').trim() : null;
}

class NoteEditor extends ReactWidget {
  constructor(
    private _text: string,
    private readonly _label: string
  ) {
    super();
    this.addClass('jp-GpuCkptNote');
  }

  /** Return the value of the dialog. */
  getValue(): string {
    return this._text;
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    window.addEventListener('keydown', this._keepEnter, true);
  }

  protected onBeforeDetach(message: Message): void {
    window.removeEventListener('keydown', this._keepEnter, true);
    super.onBeforeDetach(message);
  }

  protected render(): JSX.Element {
    return (
      <textarea
        className="jp-mod-styled"
        aria-label={this._label}
        rows={6}
        maxLength={LONGEST}
        defaultValue={this._text}
        onChange={event => {
          this._text = event.target.value;
        }}
      />
    );
  }

  /** Keeps the dialog from handling Enter, which must start a new line. */
  private readonly _keepEnter = (event: KeyboardEvent) => {
    const target = event.target as Node | null;
    if (event.key === 'Enter' && !event.ctrlKey && this.node.contains(target)) {
      event.stopPropagation();
    }
  };
}

/** The most characters of a note. */
const LONGEST = 10000;
