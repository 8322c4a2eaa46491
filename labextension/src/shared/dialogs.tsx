// Dialogs and their parts: questions, bodies that have a value, lists and tables.

import {
  Dialog,
  InputDialog,
  ReactWidget,
  showDialog
} from '@jupyterlab/apputils';
import * as React from 'react';

import type { GpuCkptError } from './api';
import { trans } from './translation';

/**
 * Show a dialog with the buttons "Cancel" and `label`. `warns`: what `label` does cannot be undone, or may do harm. `cancel`: the label of
 * the other button, if that does something as well.
 */
export function ask<T>(
  title: string,
  body: Dialog.Body<T>,
  label: string,
  {
    warns = false,
    cancel,
    ...options
  }: Partial<Dialog.IOptions<T>> & { warns?: boolean; cancel?: string } = {}
): Promise<Dialog.IResult<T>> {
  const button = warns ? Dialog.warnButton : Dialog.okButton;
  const buttons = [Dialog.cancelButton({ label: cancel }), button({ label })];
  return showDialog({ title, body, buttons, ...options });
}

/** The options of a question to which a careless press of Enter must answer no. */
const SAFE = { warns: true, defaultButton: 0 };

/** Show a dialog as `ask` does; return whether the user agrees. */
export async function agrees(
  ...question: Parameters<typeof ask>
): Promise<boolean> {
  return (await ask(...question)).button.accept;
}

/** Ask for a line of text; null: the user cancels. */
export async function askText(
  title: string,
  label: string,
  okLabel: string,
  text = ''
): Promise<string | null> {
  const options = { title, label, text, okLabel };
  const { button, value } = await InputDialog.getText(options);
  return button.accept ? (value ?? '').trim() : null;
}

/** Show a dialog that its user reads and closes. */
export async function show(title: string, body: JSX.Element): Promise<void> {
  const buttons = [Dialog.okButton({ label: trans.__('Close') })];
  await showDialog({ title, body, buttons });
}

/** A dialog's body whose elements set its value. */
export class Body<T> extends ReactWidget implements Dialog.IBodyWidget<T> {
  constructor(
    private _value: T,
    private readonly _draw: (set: (value: T) => void) => JSX.Element
  ) {
    super();
  }

  getValue(): T {
    return this._value;
  }

  protected render(): JSX.Element {
    return this._draw(value => {
      this._value = value;
    });
  }
}

/** Draw a list of lines of text. */
export function Lines({ texts }: { texts: string[] }): JSX.Element {
  return (
    <ul className="jp-GpuCkptDialog-lines">
      {texts.map((text, index) => (
        <li key={index}>{text}</li>
      ))}
    </ul>
  );
}

/** Draw a table. The first cell of each row is its name. */
export function Table(props: {
  caption?: string;
  head: string[];
  rows: [string, ...React.ReactNode[]][];
}): JSX.Element {
  return (
    <table className="jp-GpuCkptTable">
      {props.caption ? <caption>{props.caption}</caption> : null}
      <thead>
        <tr>
          {props.head.map(name => (
            <th key={name} scope="col">
              {name}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {props.rows.map(([name, ...cells]) => (
          <tr key={name}>
            <th scope="row">{name}</th>
            {cells.map((cell, index) => (
              <td key={index}>{cell}</td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** Draw a sentence; what is between backticks is a command. */
export function Sentence({ text }: { text: string }): JSX.Element {
  const parts = text.split('`');
  return (
    <p>
      {parts.map((part, index) =>
        index % 2 && index < parts.length - 1 ? (
          <code key={index}>{part}</code>
        ) : (
          part
        )
      )}
    </p>
  );
}

/** Show the end of an operation: sentences, and the technical cause of an error or the end of a log. */
export function showDetails(
  title: string,
  sentences: string[],
  error: GpuCkptError | null
): Promise<void> {
  return show(
    title,
    <div className="jp-GpuCkptDetails">
      {sentences.map(sentence => (
        <Sentence key={sentence} text={sentence} />
      ))}
      {error?.details ? <pre tabIndex={0}>{error.details}</pre> : null}
      {error ? (
        <p className="jp-GpuCkptDetails-code">
          {trans.__('Error code: %1', error.code)}
        </p>
      ) : null}
    </div>
  );
}

/** Ask whether to resume a kernel although its files changed. `error`: the server's refusal, which names them. */
export function mayResumeAnyway(
  name: string,
  error: GpuCkptError
): Promise<boolean> {
  return agrees(
    trans.__('Resume %1 although files changed?', name),
    <div className="jp-GpuCkptDialog">
      <p role="alert">{error.message}</p>
      <p>
        {trans.__(
          'Put the files back as they were, then resume the kernel. If you resume it anyway, using them may end the kernel, give wrong results or damage a database; the snapshot stays.'
        )}
      </p>
      <p>
        {trans.__(
          'Files that c.GpuCkptProvisioner.keep_files names travel with snapshots.'
        )}
      </p>
    </div>,
    trans.__('Resume Anyway'),
    SAFE
  );
}

/** Ask whether to resume a session here although another machine may still run it. `error`: the server's refusal, which names it. */
export function mayTakeOver(
  name: string,
  error: GpuCkptError
): Promise<boolean> {
  const consequence = trans.__(
    'Taking over does not stop it there: it keeps writing files and sending requests, as a separate session. What it has not uploaded is missing here.'
  );
  return agrees(
    trans.__('Take over %1?', name),
    `${error.message} ${consequence}`,
    trans.__('Take Over'),
    SAFE
  );
}

/** Ask whether to resume an older snapshot although another machine has gone on. `error`: the server's refusal, which names the remote. */
export function mayResumeOlder(
  name: string,
  error: GpuCkptError
): Promise<boolean> {
  return agrees(
    trans.__('Resume an older snapshot of %1?', name),
    <div className="jp-GpuCkptDialog">
      <p role="alert">{error.message}</p>
      <p>
        {trans.__(
          'To go on where the other machine stopped, cancel, and choose Fetch and Resume under “From other machines” in the Sessions panel. The older snapshot lacks what was done there; the newer one stays in the remote.'
        )}
      </p>
    </div>,
    trans.__('Resume the Older One'),
    SAFE
  );
}
