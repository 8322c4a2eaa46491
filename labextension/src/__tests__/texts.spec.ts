import { GpuCkptError } from '../shared/api';
import { formatBytes, formatSeconds, nameOfPath } from '../shared/format';
import type {
  RetentionPolicy,
  KernelState,
  KernelView,
  IOperation,
  ResultView,
  OperationKind
} from '../shared/records';
import { expiryTexts, snapshotTitle } from '../snapshot/snapshot-texts';
import {
  doneText,
  explain,
  failedText,
  lastErrorText,
  progressText,
  refusal,
  stateCaption,
  stateLabel,
  suspendedTexts,
  usageTexts
} from '../shared/texts';
import type { IKernelStates } from '../shared/tokens';
import { aDone, aKernel, aSave, aSnapshot } from './fakes';

it.each([
  ['work/a.ipynb', 'a.ipynb'],
  ['', 'Unnamed'],
  ['work/console-3-4f5ac272-996d-4c92-8c3f-e0b93650e39b', 'Console 3'],
  ['work/console-3', 'console-3']
])('%p is shown as %p', (path, name) => {
  expect(nameOfPath(path)).toBe(name);
});

it.each([
  [{}, /^[^[]*1970[^[]*$/],
  [{ cell: 5 }, /^After \[5\], .*1970/],
  [{ cell: 5, in_cell: true }, /^During \[5\], .*1970/],
  [{ cell: 5, title: 'mine' }, /^mine$/]
])('a snapshot with %j has a title', (changes, title) => {
  expect(snapshotTitle(aSnapshot(changes))).toMatch(title);
});

const noRule = {
  keep_last: 0,
  keep_within_seconds: 0,
  keep_suspends: 0,
  keep_tool_saves: 0,
  thins: false,
  max_bytes: 0,
  manual_too: false
};

it.each<[Partial<RetentionPolicy>, string[]]>([
  [{}, ['Automatic snapshots do not expire.']],
  [
    { keep_last: 1, keep_suspends: 10 },
    [
      'An automatic snapshot expires when its kernel has a newer one.',
      'The last 10 suspends by you are kept for each kernel.'
    ]
  ],
  [
    { keep_last: 3, keep_within_seconds: 86400, max_bytes: 2e10 },
    [
      'An automatic snapshot expires when its kernel has 3 newer ones and it is 24 h older than the latest.',
      'If all snapshots take more than 20 GB, the oldest automatic ones are deleted.'
    ]
  ],
  [
    { keep_within_seconds: 86400 },
    [
      'An automatic snapshot expires when it is 24 h older than the latest of its kernel.'
    ]
  ]
])('%p is explained', (rules, texts) => {
  expect(expiryTexts({ ...noRule, ...rules })).toEqual(texts);
});

/** What an operation did, with some of its numbers changed. */
function with_(operation: Partial<IOperation>, result: Partial<ResultView>) {
  const done = aDone(operation);
  return { ...done, result: { ...done.result!, ...result } };
}

/** Only what a refusal looks at. */
function knowing(
  kernel?: KernelView,
  problem: GpuCkptError | null = null
): IKernelStates {
  return {
    get: () => kernel,
    problem: () => problem,
    inFlight: () => kernel?.operation?.kind ?? null
  } as Partial<IKernelStates> as IKernelStates;
}

const can = (kind: OperationKind, kernel: KernelView) =>
  refusal(kind, 'k', knowing(kernel)) === null;

describe('refusal', () => {
  it.each<[KernelState, OperationKind[]]>([
    ['starting', []],
    ['running', ['save', 'suspend', 'park', 'branch', 'roll_back', 'move']],
    ['saving', ['suspend']],
    ['parking', []],
    ['parked', ['save', 'suspend', 'resume', 'branch', 'roll_back', 'move']],
    ['unparking', []],
    ['suspending', []],
    ['suspended', ['resume', 'branch', 'roll_back', 'move']],
    ['resuming', []],
    ['lost', ['resume', 'branch', 'roll_back']]
  ])('in state %s allows %j', (state, allowed) => {
    const kernel = aKernel({ state, snapshot_id: 's' });
    const kinds: OperationKind[] = [
      'save',
      'suspend',
      'resume',
      'park',
      'branch',
      'roll_back',
      'move'
    ];
    expect(kinds.filter(kind => can(kind, kernel))).toEqual(allowed);
  });

  it('lets a suspend, and nothing else, pre-empt a save', () => {
    const kernel = aKernel({ state: 'saving', operation: aSave() });
    expect(can('suspend', kernel)).toBe(true);
    expect(can('save', kernel)).toBe(false);
  });

  it('resumes no lost kernel without a snapshot', () => {
    expect(can('resume', aKernel({ state: 'lost' }))).toBe(false);
  });

  it('parks no kernel that is known to use no GPU', () => {
    const measured = aKernel({ memory_bytes: 1e8 });
    expect(refusal('park', 'k', knowing(measured))).toBe(
      'This kernel uses no GPU memory.'
    );
    expect(can('park', aKernel({ memory_bytes: 1e8, gpu_bytes: 1 }))).toBe(
      true
    );
  });

  it('says why a kernel cannot be saved', () => {
    const kernel = aKernel({
      managed: false,
      reason: 'criu is missing.',
      hint: 'Run `apt install criu`.'
    });
    expect(refusal('save', 'k', knowing(kernel))).toBe(
      'This kernel cannot be saved: criu is missing.\nRun `apt install criu`.'
    );
  });

  it('says that there is no kernel, or that nothing is known of it', () => {
    const problem = new GpuCkptError({
      message: '404',
      code: GpuCkptError.NO_EXTENSION,
      hint: null
    });
    expect(refusal('save', null, knowing())).toContain('no kernel');
    expect(refusal('save', 'k', knowing())).toContain('not known yet');
    expect(refusal('save', 'k', knowing(undefined, problem))).toContain(
      'jupyter server extension list'
    );
  });
});

describe('texts', () => {
  it.each([
    [aDone(), 'Saved a: paused 0.18 s · 412 MB on disk (35.4 MB new)'],
    [
      aDone({ kind: 'suspend' }),
      'Suspended a in 0.41 s: freed 999 MB of RAM · 412 MB on disk'
    ],
    [
      with_({ kind: 'suspend' }, { gpu_bytes: 600e6 }),
      'Suspended a in 0.41 s: freed 600 MB of GPU memory and 399 MB of RAM · 412 MB on disk'
    ],
    [
      with_({ kind: 'park' }, { gpu_bytes: 600e6 }),
      'Parked a in 0.41 s: freed 600 MB of GPU memory'
    ],
    [aDone({ kind: 'resume' }), 'Resumed a in 0.41 s'],
    [aDone({ kind: 'roll_back' }), 'Restored a in 0.41 s'],
    [
      aDone({ kind: 'branch', path: 'work/a-branch-1.ipynb' }),
      'Branched a into a-branch-1.ipynb in 0.41 s'
    ],
    [aDone({ result: null }), 'Saved a']
  ])('say what was done', (operation, text) => {
    expect(doneText(operation, 'a')).toBe(text);
  });

  it('tell a failure from a cancellation', () => {
    const error = { message: 'No.', code: 'x', hint: null };
    const cancelled = { ...error, code: GpuCkptError.CANCELLED };
    expect(failedText('park', 'a', error)).toBe('Parking a failed');
    expect(failedText('park', 'a', cancelled)).toBe('Parking a was canceled');
  });

  it('say what a kernel uses, as far as that is known', () => {
    expect(usageTexts(aKernel())).toEqual([]);
    const busy = { memory_bytes: 1.2e9, gpu_bytes: 3e9, gpu_utilization: 41.7 };
    expect(usageTexts(aKernel(busy))).toEqual([
      '1.2 GB RAM',
      '3 GB GPU',
      'GPU 42% busy'
    ]);
    const asleep = { state: 'suspended' as const, suspended_bytes: 4e9 };
    expect(usageTexts(aKernel({ ...busy, ...asleep }))).toEqual([
      '4 GB of memory saved'
    ]);
  });

  it('say since when a kernel is suspended, how big it is and how long a resume takes', () => {
    const kernel = aKernel({ state: 'suspended' });
    expect(suspendedTexts(kernel)).toEqual([
      'This kernel is suspended.',
      'Running a cell resumes it.'
    ]);
    const known = { since: 1000, suspended_bytes: 4e9, resume_seconds: 3.21 };
    expect(suspendedTexts({ ...kernel, ...known })).toEqual([
      expect.stringMatching(/^Suspended since .*1970.*\.$/),
      '4 GB of memory saved. Resuming takes about 3.2 s.',
      'Running a cell resumes it.'
    ]);
  });

  it.each([
    ['memory', 'Memory was short and the kernel was idle.'],
    ['idle', 'The kernel was idle.'],
    ['shutdown', 'The server was stopped.'],
    ['reclaim', 'The machine was reclaimed.']
  ] as const)(
    'say that a kernel was suspended because of %s',
    (cause, text) => {
      const suspended = { state: 'suspended', suspend_cause: cause } as const;
      expect(suspendedTexts(aKernel(suspended))).toEqual([
        'This kernel is suspended.',
        text,
        'Running a cell resumes it.'
      ]);
    }
  );

  it('say nothing about the reason if the user requested the suspend', () => {
    const suspended = { state: 'suspended', suspend_cause: 'manual' } as const;
    expect(suspendedTexts(aKernel(suspended))).toHaveLength(2);
  });

  it('say where a kernel was moved to, and promise nothing after a failure', () => {
    const moved = aKernel({ state: 'suspended', moved_to: 'team', since: 9 });
    const where =
      'Moved to “team”, from where another machine can continue it.';
    expect(stateLabel(moved)).toBe('Moved');
    expect(stateCaption(moved)).toBe(where);
    expect(suspendedTexts(moved)).toEqual([
      where,
      'Resume brings it back here.'
    ]);
    const failed = { reason: 'It runs on desk.', failed_at: 86400 * 365 };
    expect(suspendedTexts({ ...moved, ...failed })).toEqual([where]);
    expect(suspendedTexts(aKernel({ state: 'suspended', ...failed }))).toEqual([
      'This kernel is suspended.'
    ]);
    expect(stateLabel({ ...moved, state: 'resuming' })).toBe('Resuming');
  });

  it.each([
    [{}, 'Running a cell resumes it.'],
    [{ cell_paused: true }, 'A cell is paused; Resume continues it.'],
    [
      { cell_paused: true, continues_alone: true },
      'A cell is paused; it continues when the server is back.'
    ],
    [{ cells_resume: false }, 'Press Resume before you run a cell.']
  ])('with %j say what resumes a kernel', (changes, text) => {
    const kernel = aKernel({ state: 'suspended', ...changes });
    expect(suspendedTexts(kernel)).toContain(text);
  });

  it.each([
    [0, null, 'Writing to disk'],
    [50, 200, 'Writing to disk 25%'],
    [300, 200, 'Writing to disk 100%'],
    [0, 0, 'Writing to disk']
  ])('say how far %d of %d is', (done_bytes, total_bytes, text) => {
    const progress = { stage: 'store', seconds: 0 };
    expect(progressText({ ...progress, done_bytes, total_bytes })).toBe(text);
  });

  it('name every state, known or not', () => {
    expect(stateLabel(aKernel({ state: 'suspended' }))).toBe('Suspended');
    expect(stateLabel(aKernel({ managed: false }))).toBe('Cannot be saved');
  });

  it('say what went wrong last, or what a kernel waits for', () => {
    const kernel = aKernel({
      state: 'suspended',
      reason: 'No GPU.',
      hint: null
    });
    expect(stateCaption(kernel)).toBe('No GPU.');
    expect(lastErrorText(kernel)).toBe('No GPU.');
    const dated = { ...kernel, failed_at: 86400 * 365 };
    expect(lastErrorText(dated)).toMatch(/71.*: No GPU\.$/);
  });

  it('leave out an empty hint', () => {
    const record = { message: 'No.', code: 'x', hint: '' };
    expect(explain(record)).toEqual(['No.']);
  });

  it.each([
    [0, '0 B'],
    [999.6, '1 kB'],
    [412e6, '412 MB'],
    [1.234e9, '1.23 GB'],
    [5e15, '5000 TB']
  ])('write %d bytes as %s', (bytes, text) => {
    expect(formatBytes(bytes)).toBe(text);
  });

  it.each([
    [0.001, '0.01 s'],
    [0.1834, '0.18 s'],
    [9.96, '10 s'],
    [100.4, '100 s'],
    [123.4, '2 min'],
    [9000, '3 h']
  ])('write %d seconds as %s', (seconds, text) => {
    expect(formatSeconds(seconds)).toBe(text);
  });
});
