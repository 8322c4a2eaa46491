import { Clipboard, Notification } from '@jupyterlab/apputils';

import { GpuCkptApi } from '../shared/api';
import { checkMachine } from '../machine/machine-check';
import { failureText } from '../shared/notices';
import { tellRefusal } from '../shared/press';
import { dialog, FakeServer, press, refused } from './fakes';

const CAUSE = 'CRIU is needed in version 4.2 or newer and was not found.';

const shown = () => Notification.manager.notifications;

function pressed(label: string): void {
  const actions = shown().flatMap(({ options }) => options.actions ?? []);
  const found = actions.find(action => action.label === label);
  found?.callback(new MouseEvent('click', { cancelable: true }));
}

afterEach(() => {
  Notification.dismiss();
  localStorage.clear();
  jest.restoreAllMocks();
});

describe('the text of a failure', () => {
  const cause =
    'Process 4711 (python3) has a connection. It goes to db.example.org:5432, to which it is connected since yesterday evening.';

  it('ends with the remedy', () => {
    expect(failureText('Saving a failed', ['The disk is full.', 'Wait.'])).toBe(
      'Saving a failed: The disk is full. Wait.'
    );
    expect(failureText('Failed', ['Full.'])).toBe('Failed: Full.');
  });

  it.each([
    [
      'Saving a failed',
      'Close it.',
      /^Saving a failed: Process 4711 \(python3\) has a connection. Close it\.$/
    ],
    [
      'Saving a failed',
      'Close it'.padEnd(88, 'x') + '.',
      /^Process 4711 .* connection\. Close itx*\.$/
    ],
    [
      'Saving a failed',
      'Run `' + 'x'.repeat(99) + '`.',
      /^Saving a failed: .* “Copy Command” copies what helps\.$/
    ],
    [
      'Saving a failed',
      'x'.repeat(120),
      /^Saving a failed: .* “Details” shows what helps\.$/
    ],
    [
      'x'.repeat(105),
      'Close it.',
      /^Process 4711 .* has a connection\. Close it\.$/
    ]
  ])(
    'keeps the remedy where JupyterLab would cut it off: %s, %s',
    (headline, hint, text) => {
      const found = failureText(headline, [cause, hint]);
      expect(found).toMatch(text);
      expect(found.length).toBeLessThanOrEqual(140);
    }
  );

  it('leaves out the folders of a path before it leaves out its file', () => {
    const path = `/some/${'folder/'.repeat(20)}data.csv`;
    expect(failureText('Resumed a', [`The file ${path} has changed.`])).toBe(
      'Resumed a: The file …/data.csv has changed.'
    );
  });

  it('cuts a long cause at the end of a word', () => {
    const long = 'word '.repeat(60).trim();
    const found = failureText('Failed', [long, 'Wait.']);
    expect(found).toMatch(/^Failed: (word )+word… Wait\.$/);
    expect(found.length).toBeGreaterThan(130);
  });
});

describe('a press that is not possible', () => {
  it('is told once, with a command that can be copied', () => {
    const copy = jest.spyOn(Clipboard, 'copyToSystem').mockReturnValue();
    const reason = `Save: ${CAUSE}\nThis helps: \`make setup\``;
    tellRefusal('Save', reason);
    tellRefusal('Save', reason);
    expect(shown().map(({ message }) => message)).toEqual([
      `Save: ${CAUSE} This helps: \`make setup\``
    ]);
    pressed('Copy Command');
    expect(copy).toHaveBeenCalledWith('make setup');
    expect(shown()[0].options.actions).toHaveLength(1);
  });
});

describe('a machine on which nothing can be saved', () => {
  const report = {
    engine_available: false,
    reason: CAUSE,
    hint: 'This helps: `make setup`',
    checks: [
      {
        name: 'platform',
        ok: true,
        message: 'Linux.',
        fix: '',
        required: true
      },
      {
        name: 'criu',
        ok: false,
        message: CAUSE,
        fix: 'make setup',
        required: true
      }
    ]
  };

  async function check(answer: object): Promise<string[]> {
    const server = new FakeServer().on('GET host', answer);
    await checkMachine(new GpuCkptApi(server.settings));
    return shown().map(({ message }) => message);
  }

  it('is told with the cause, the remedy and the doctor’s report', async () => {
    expect(await check(report)).toEqual([
      `Kernels cannot be saved here: ${CAUSE} This helps: \`make setup\``
    ]);
    pressed('Details');
    const details = await dialog('Linux.');
    expect(details.querySelector('pre')?.textContent).toBe('make setup');
    expect(details.textContent).toContain('This helps: make setup');
    expect(details.querySelector('p code')?.textContent).toBe('make setup');
    press(details, 'accept');
  });

  it('is not told again if the user does not want that, until the cause is another', async () => {
    await check(report);
    pressed('Don’t Repeat');
    Notification.dismiss();
    expect(await check(report)).toEqual([]);
    expect(await check({ ...report, reason: 'No init.' })).toHaveLength(1);
  });

  it.each([
    [{ ...report, engine_available: true }, 0],
    [refused(503, { message: 'Busy.', code: 'daemon_silent' }), 0],
    [refused(503, { message: 'No daemon.', code: 'daemon_unavailable' }), 1],
    [{ status: 404, body: '<html>' }, 1]
  ])('is told only if that lasts: %j', async (answer, count) => {
    expect(await check(answer)).toHaveLength(count);
  });
});
