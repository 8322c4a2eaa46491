import { Notification } from '@jupyterlab/apputils';
import { CommandRegistry } from '@lumino/commands';

import { GpuCkptApi } from '../shared/api';
import type { IEntries } from '../remote/new-remote';
import {
  fieldsOf,
  missingText,
  nameOf,
  NO_ENTRIES,
  requestOf,
  triedTexts
} from '../remote/new-remote';
import {
  addRemoteCommands,
  addRemoteCommandId,
  joinLineCommandId
} from '../remote/new-remote-dialog';
import { dialog, FakeServer, press, refused } from './fakes';

const LINE = 's3://bucket/team/kernels 0123456789abcdef 1 SECRET';
const entries = (changes: Partial<IEntries>) => ({ ...NO_ENTRIES, ...changes });

describe('the request for a new remote', () => {
  it('has the place and only those settings that were entered', () => {
    const texts = {
      bucket: ' bucket ',
      prefix: '/team//kernels/',
      region: '',
      endpoint: 'http://store:9000',
      profile: 'work',
      folder: '/left/from/before'
    };
    expect(requestOf(entries({ place: 's3', texts }))).toEqual({
      name: 'kernels',
      url: 's3://bucket/team/kernels',
      settings: { endpoint: 'http://store:9000', profile: 'work' },
      joins: false,
      secret: { line: '', password: '' }
    });
    const open = entries({ place: 's3', texts, unencrypted: true });
    expect(requestOf(open).settings.allow_http).toBe('true');
  });

  it('has a folder as a URL, whatever its name', () => {
    const folder = '/mnt/my share/50%#1?';
    const asked = requestOf(entries({ texts: { folder }, name: 'mine' }));
    expect(asked.url).toBe('file:///mnt/my%20share/50%25%231%3F');
    expect(asked.name).toBe('mine');
    expect(asked.settings).toEqual({});
  });

  it('has the account of a container', () => {
    const texts = { bucket: 'container', account_name: 'me' };
    const asked = requestOf(entries({ place: 'az', texts, azureCli: true }));
    expect(asked.url).toBe('az://container');
    expect(asked.settings).toEqual({
      account_name: 'me',
      use_azure_cli: 'true'
    });
  });

  it('has a line, which names the place, and its secret in the body alone', () => {
    const joining = entries({ joins: true, line: ` ${LINE} `, password: 'x' });
    expect(fieldsOf(joining)).toEqual(['region', 'endpoint', 'profile']);
    expect(requestOf(joining)).toEqual({
      name: 'kernels',
      url: '',
      settings: {},
      joins: true,
      secret: { line: LINE, password: 'x' }
    });
    // What was entered before the user chose a new store after all is not sent.
    const other = requestOf({ ...joining, joins: false });
    expect(JSON.stringify(other)).not.toContain('SECRET');
  });

  it('is not made while an entry is missing', () => {
    expect(missingText(NO_ENTRIES)).toContain('path of the folder');
    const relative = entries({ texts: { folder: 'share' } });
    expect(missingText(relative)).toContain('path of the folder');
    expect(missingText(entries({ place: 's3' }))).toContain('bucket');
    expect(missingText(entries({ place: 'az' }))).toContain('container');
    expect(missingText(entries({ joins: true, line: LINE }))).toBe('');
    expect(nameOf(NO_ENTRIES)).toBe('remote');
    const line = 'file:///mnt/our%20share 0123 1 SECRET';
    expect(nameOf(entries({ joins: true, line }))).toBe('our-share');
  });
});

describe('the texts about a tested place', () => {
  const tried = (has_store: boolean, refusals: string[] = []) => ({
    url: '',
    refusals,
    warnings: ['It refuses to delete objects.'],
    has_store
  });

  it('say what can be done there', () => {
    expect(triedTexts(tried(false), false)).toEqual([
      'It works: a new store can be created there.',
      'It refuses to delete objects.'
    ]);
    expect(triedTexts(tried(true), false)[0]).toContain('already. Join it');
    expect(triedTexts(tried(true), true)[0]).toContain('It works');
    expect(triedTexts(tried(false), true)[0]).toContain('no store to join');
  });

  it('say what does not work', () => {
    expect(triedTexts(tried(false, ['it overwrites']), false)).toEqual([
      'It cannot be used: it overwrites.'
    ]);
  });
});

describe('the dialog of a new remote', () => {
  let server: FakeServer;
  let commands: CommandRegistry;

  const button = (shown: Element, label: string) =>
    Array.from(shown.querySelectorAll('button')).find(
      ({ textContent }) => textContent === label
    )!;

  async function opened() {
    const running = commands.execute(addRemoteCommandId);
    const shown = await dialog('Create a new one');
    const folder = shown.querySelector<HTMLInputElement>(
      "input[placeholder='/mnt/share/kernels']"
    )!;
    const set = Object.getOwnPropertyDescriptor(
      HTMLInputElement.prototype,
      'value'
    )!.set!;
    set.call(folder, '/mnt/share');
    folder.dispatchEvent(new Event('input', { bubbles: true }));
    return { running, shown };
  }

  beforeEach(() => {
    server = new FakeServer();
    commands = new CommandRegistry();
    addRemoteCommands(commands, new GpuCkptApi(server.settings));
  });

  afterEach(() => {
    Notification.dismiss();
  });

  it('stays with what was entered, says what fails, and shows the line of a new store until it is kept', async () => {
    const error = {
      message: 'There is a store already; nothing was changed.',
      code: 'configuration',
      hint: 'Join it.',
      details: null
    };
    const line = 'file:///mnt/share 0123 1 SECRET';
    server
      .on('POST remotes/test', {
        url: '',
        refusals: [],
        warnings: [],
        has_store: false
      })
      .on('POST remotes', refused(400, error), {
        name: 'share',
        warnings: [],
        line
      });
    const { running, shown } = await opened();
    button(shown, 'Test').click();
    await dialog('It works: a new store can be created there.');
    button(shown, 'Add').click();
    await dialog('nothing was changed.');
    expect(shown.textContent).toContain('Join it.');
    button(shown, 'Add').click();
    const kept = await dialog(line);
    expect(kept.textContent).toContain('not shown again');
    document.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape' }));
    expect(document.body.contains(kept)).toBe(true);
    button(kept, 'I Have Kept It').click();
    expect(await running).toBe('share');
    expect(JSON.parse(server.bodies[0])).toMatchObject({
      name: 'share',
      url: 'file:///mnt/share'
    });
    expect(document.body.textContent).not.toContain('SECRET');
  });

  it('shows the line also if it was canceled while the store was made', async () => {
    let answer: () => void = () => undefined;
    const asked = new Promise<void>(resolve => {
      answer = resolve;
    });
    const api = new GpuCkptApi(server.settings);
    jest.spyOn(api, 'addRemote').mockImplementation(async () => {
      await asked;
      return { name: 'share', warnings: [], line: 'LINE' };
    });
    commands = new CommandRegistry();
    addRemoteCommands(commands, api);
    const { running, shown } = await opened();
    button(shown, 'Add').click();
    await dialog('Adding…');
    button(shown, 'Cancel').click();
    answer();
    button(await dialog('LINE'), 'I Have Kept It').click();
    expect(await running).toBe('share');
  });

  it('shows a new line of a remote, after a question', async () => {
    const line = 'file:///mnt/share 0123 1 OTHER';
    server.on('POST remotes/share/line', { name: 'share', warnings: [], line });
    const args = { remote: 'share' };
    let running = commands.execute(joinLineCommandId, args);
    press(await dialog('Lines that were made before stay valid.'), 'reject');
    await running;
    expect(server.requests).toEqual([]);
    running = commands.execute(joinLineCommandId, args);
    press(await dialog('Let another machine join “share”?'), 'accept');
    button(await dialog(line), 'I Have Kept It').click();
    await running;
  });

  it('adds nothing if it is canceled', async () => {
    const { running, shown } = await opened();
    button(shown, 'Cancel').click();
    expect(await running).toBeNull();
    expect(server.requests).toEqual([]);
  });
});
