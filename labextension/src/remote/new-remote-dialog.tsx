// The commands that add a remote and let others join it, and their dialogs: the place and its test, the line by which machines join.

import { Clipboard, Dialog, Printing, ReactWidget } from '@jupyterlab/apputils';
import type { CommandRegistry } from '@lumino/commands';
import * as React from 'react';

import type { GpuCkptApi } from '../shared/api';
import { GpuCkptError } from '../shared/api';
import { agrees, Lines } from '../shared/dialogs';
import { conclude, orTell } from '../shared/notices';
import type { AddedRemote } from '../shared/records';
import { explain } from '../shared/texts';
import { trans } from '../shared/translation';
import type { IEntries } from './new-remote';
import {
  credentialsText,
  fieldExample,
  fieldLabel,
  fieldsOf,
  isUnencrypted,
  missingText,
  nameOf,
  NO_ENTRIES,
  placeLabel,
  placeOf,
  PLACES,
  requestOf,
  triedTexts
} from './new-remote';

/** The command that adds a remote; it returns the name, or null. */
export const addRemoteCommandId = 'gpuckpt:add-remote';

/** The command that makes a new line by which other machines join a remote. */
export const joinLineCommandId = 'gpuckpt:join-line';

/** Add the commands. */
export function addRemoteCommands(
  commands: CommandRegistry,
  api: GpuCkptApi
): void {
  commands.addCommand(addRemoteCommandId, {
    label: trans.__('Add Remote…'),
    caption: trans.__(
      'Keep copies of snapshots in a folder or a bucket, from which other machines can continue'
    ),
    describedBy: { args: { type: 'object', properties: {} } },
    execute: () => addRemote(api)
  });
  commands.addCommand(joinLineCommandId, {
    label: trans.__('Let Another Machine Join…'),
    caption: trans.__('Make a line by which another machine joins this remote'),
    describedBy: {
      args: {
        type: 'object',
        required: ['remote'],
        properties: {
          remote: { type: 'string', description: 'The name of the remote.' }
        }
      }
    },
    execute: async ({ remote }) => {
      const name = String(remote);
      const made = (await mayMakeLine(name))
        ? await orTell(trans.__('Making a line for “%1” failed', name), () =>
            api.joinLine(name)
          )
        : null;
      if (made !== null) {
        await showLine(made);
      }
    }
  });
}

function mayMakeLine(name: string): Promise<boolean> {
  return agrees(
    trans.__('Let another machine join “%1”?', name),
    trans.__(
      'A new line is made, by which a machine joins the remote. Lines that were made before stay valid.'
    ),
    trans.__('Make the Line')
  );
}

/** Ask for a place, add a remote there and show its line; return its name, or null if none was added. */
async function addRemote(api: GpuCkptApi): Promise<string | null> {
  let added: AddedRemote | null = null;
  const body = new NewRemoteBody();
  const buttons = [
    Dialog.cancelButton(),
    Dialog.cancelButton({ label: trans.__('Test') }),
    Dialog.okButton({ label: trans.__('Add') })
  ];
  const dialog = new BusyDialog(
    {
      title: trans.__('Add a remote'),
      body,
      buttons,
      defaultButton: ADD,
      focusNodeSelector: '.jp-GpuCkptForm-text input'
    },
    CANCEL,
    async index => {
      const request = requestOf(body.entries);
      await body.during(
        index === TEST ? trans.__('Testing…') : trans.__('Adding…'),
        async () => {
          if (index === TEST) {
            return triedTexts(await api.tryRemote(request), request.joins);
          }
          added = await api.addRemote(request);
          return [];
        }
      );
      if (added !== null) {
        // Also if the dialog was canceled meanwhile: the store is there, and its line is shown only now.
        conclude(
          '',
          trans.__('Added remote “%1”', added.name),
          added.warnings.length > 0 ? 'warning' : 'success'
        );
      }
      return added !== null;
    }
  );
  await dialog.launch();
  await dialog.isIdle();
  const found = added as AddedRemote | null;
  if (found?.line) {
    await showLine(found);
  }
  return found && found.name;
}

const CANCEL = 0;
const TEST = 1;
const ADD = 2;

/** A dialog whose buttons do their work before it closes, or without closing it. */
class BusyDialog extends Dialog<unknown> {
  constructor(
    options: Partial<Dialog.IOptions<unknown>>,
    /** The button that closes the dialog at once. */
    private readonly _closing: number,
    /** Does the work of another button; returns whether the dialog closes. */
    private readonly _work: (index: number) => Promise<boolean>
  ) {
    super(options);
  }

  resolve(index?: number): void {
    if (index === this._closing) {
      super.resolve(index);
    } else if (index !== undefined && !this._isBusy) {
      this._isBusy = true;
      this._done = this._act(index);
    }
  }

  /** Wait for the end of the work, which goes on after the dialog was canceled. */
  isIdle(): Promise<void> {
    return this._done;
  }

  private async _act(index: number): Promise<void> {
    try {
      if (await this._work(index)) {
        super.resolve(index);
      }
    } finally {
      this._isBusy = false;
    }
  }

  private _isBusy = false;
  private _done: Promise<void> = Promise.resolve();
}

/** The body of the dialog: the form, and what is known of the place. */
class NewRemoteBody extends ReactWidget {
  /** What was entered until now. */
  entries: IEntries = NO_ENTRIES;

  /** Show that work is done, then what it returns or why it failed. Nothing is done while an entry is missing. */
  async during(started: string, work: () => Promise<string[]>): Promise<void> {
    const missing = missingText(this.entries);
    if (missing) {
      this._tell([missing]);
      return;
    }
    this._tell([started]);
    try {
      this._tell(await work());
    } catch (error) {
      if (!(error instanceof GpuCkptError)) {
        throw error;
      }
      this._tell(explain(error));
    }
  }

  protected render(): JSX.Element {
    return (
      <Form
        entries={this.entries}
        told={this._told}
        change={changes => {
          this.entries = { ...this.entries, ...changes };
          this._tell([]);
        }}
      />
    );
  }

  private _tell(texts: string[]): void {
    this._told = texts;
    if (!this.isDisposed) {
      this.update();
    }
  }

  private _told: string[] = [];
}

/** Draw the form. Its inputs hold their own texts, because a widget is drawn only after the event of an input. */
function Form(props: {
  entries: IEntries;
  told: string[];
  change: (changes: Partial<IEntries>) => void;
}): JSX.Element {
  const { entries, told, change } = props;
  const { joins, texts } = entries;
  const place = placeOf(entries);
  const hasLine = joins && entries.line.trim() !== '';
  return (
    <div className="jp-GpuCkptDialog jp-GpuCkptForm">
      <Choice
        group="joins"
        legend={trans.__('Store')}
        options={[
          ['new', trans.__('Create a new one')],
          ['join', trans.__('Join one that another machine uses')]
        ]}
        chosen={joins ? 'join' : 'new'}
        choose={value => change({ joins: value === 'join' })}
      />
      {joins ? (
        <>
          <Text
            label={trans.__('Line of the other machine')}
            value={entries.line}
            change={line => change({ line })}
          />
          <Text
            label={trans.__('Password (for a line without a code)')}
            value={entries.password}
            type="password"
            change={password => change({ password })}
          />
        </>
      ) : null}
      {hasLine ? null : (
        <Choice
          group="place"
          legend={trans.__('Place')}
          options={PLACES.map(one => [one, placeLabel(one)])}
          chosen={place}
          choose={value =>
            change({ place: PLACES.find(one => one === value) ?? place })
          }
        />
      )}
      {fieldsOf(entries).map(field => (
        <Text
          key={field}
          label={fieldLabel(field, place)}
          value={texts[field] ?? ''}
          example={fieldExample(field)}
          change={text => change({ texts: { ...texts, [field]: text } })}
        />
      ))}
      {place === 'az' ? (
        <Check
          label={trans.__('Use the login of the Azure tools')}
          value={entries.azureCli}
          change={azureCli => change({ azureCli })}
        />
      ) : null}
      {isUnencrypted(entries) ? (
        <Check
          label={trans.__(
            'Connect without encryption: nobody else can read the traffic'
          )}
          value={entries.unencrypted}
          change={unencrypted => change({ unencrypted })}
        />
      ) : null}
      {hasLine && place === 'file' ? null : (
        <p className="jp-GpuCkptForm-note">{credentialsText(place)}</p>
      )}
      <Text
        label={trans.__('Name on this machine')}
        value={entries.name}
        example={nameOf(entries)}
        change={name => change({ name })}
      />
      <div role="status" className="jp-GpuCkptForm-told">
        {told.map(text => (
          <p key={text}>{text}</p>
        ))}
      </div>
    </div>
  );
}

function Choice(props: {
  group: string;
  legend: string;
  options: (readonly [string, string])[];
  chosen: string;
  choose: (value: string) => void;
}): JSX.Element {
  return (
    <fieldset>
      <legend>{props.legend}</legend>
      {props.options.map(([value, label]) => (
        <label key={value}>
          <input
            type="radio"
            name={`jp-gpuckpt-${props.group}`}
            value={value}
            defaultChecked={value === props.chosen}
            onChange={() => props.choose(value)}
          />{' '}
          {label}
        </label>
      ))}
    </fieldset>
  );
}

function Text(props: {
  label: string;
  value: string;
  example?: string;
  type?: 'text' | 'password';
  change: (text: string) => void;
}): JSX.Element {
  return (
    <label className="jp-GpuCkptForm-text">
      {props.label}
      <input
        className="jp-mod-styled"
        type={props.type ?? 'text'}
        autoComplete="off"
        spellCheck={false}
        defaultValue={props.value}
        placeholder={props.example}
        onChange={event => props.change(event.target.value)}
      />
    </label>
  );
}

function Check(props: {
  label: string;
  value: boolean;
  change: (isChecked: boolean) => void;
}): JSX.Element {
  return (
    <label>
      <input
        type="checkbox"
        defaultChecked={props.value}
        onChange={event => props.change(event.target.checked)}
      />{' '}
      {props.label}
    </label>
  );
}

/** Show a line by which other machines join; this one is not shown again. */
async function showLine({ name, line, warnings }: AddedRemote): Promise<void> {
  const body = ReactWidget.create(
    <div className="jp-GpuCkptDialog">
      <p>
        {trans.__('Another machine joins the remote “%1” by this line:', name)}
      </p>
      <pre className="jp-GpuCkptLine" tabIndex={0}>
        {line}
      </pre>
      <p>
        {trans.__(
          'Print it, or keep it in a safe place away from this machine, which can make another one later. If all machines of the remote are lost, nobody can read the snapshots without it. Whoever has the line and access to the place can read them.'
        )}
      </p>
      {warnings.length > 0 ? <Lines texts={warnings} /> : null}
    </div>
  );
  const buttons = [
    Dialog.cancelButton({ label: trans.__('Copy') }),
    Dialog.cancelButton({ label: trans.__('Print…') }),
    Dialog.okButton({ label: trans.__('I Have Kept It') })
  ];
  const title = trans.__('Keep this line: it is not shown again');
  // Neither Escape nor Enter, which may have added the remote, closes this dialog.
  const dialog = new BusyDialog(
    { title, body, buttons, hasClose: false, defaultButton: COPY },
    KEPT,
    async index => {
      if (index === COPY) {
        Clipboard.copyToSystem(line);
      } else {
        await Printing.printWidget(body);
      }
      return false;
    }
  );
  await dialog.launch();
}

const COPY = 0;
const KEPT = 2;
