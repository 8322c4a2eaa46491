import { nullTranslator } from '@jupyterlab/translation';

import { GpuCkptError } from '../api';
import type { IKernel, KernelState, OperationKind } from '../protocol';
import {
  doneText,
  explain,
  formatBytes,
  formatSeconds,
  progressText,
  refusal,
  stateCaption,
  stateLabel
} from '../texts';
import type { IKernelStates } from '../tokens';
import { aDone, aKernel, aSave } from './fakes';

const trans = nullTranslator.load('');

/** Only what a refusal looks at. */
function knowing(
  kernel?: IKernel,
  problem: GpuCkptError | null = null
): IKernelStates {
  return {
    get: () => kernel,
    problem: () => problem,
    inFlight: () => kernel?.operation?.kind ?? null
  } as Partial<IKernelStates> as IKernelStates;
}

const can = (kind: OperationKind, kernel: IKernel) =>
  refusal(kind, 'k', knowing(kernel), trans) === null;

describe('refusal', () => {
  it.each<[KernelState, OperationKind[]]>([
    ['starting', []],
    ['running', ['save', 'suspend']],
    ['saving', ['suspend']],
    ['parking', []],
    ['parked', ['save', 'suspend', 'resume']],
    ['unparking', []],
    ['suspending', []],
    ['suspended', ['resume']],
    ['resuming', []],
    ['lost', ['resume']]
  ])('in state %s allows %j', (state, allowed) => {
    const kernel = aKernel({ state, snapshot_id: 's' });
    const kinds: OperationKind[] = ['save', 'suspend', 'resume'];
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

  it('says why a kernel does not run under the engine', () => {
    const kernel = aKernel({
      managed: false,
      reason: 'criu is missing.',
      hint: 'Run `apt install criu`.'
    });
    expect(refusal('save', 'k', knowing(kernel), trans)).toBe(
      'This kernel does not run under the engine: criu is missing. Run `apt install criu`.'
    );
  });

  it('says that there is no kernel, or that nothing is known of it', () => {
    const problem = new GpuCkptError({
      message: '404',
      code: GpuCkptError.NO_EXTENSION,
      hint: null
    });
    expect(refusal('save', null, knowing(), trans)).toContain('no kernel');
    expect(refusal('save', 'k', knowing(), trans)).toContain('not known yet');
    expect(refusal('save', 'k', knowing(undefined, problem), trans)).toContain(
      'jupyter server extension list'
    );
  });
});

describe('texts', () => {
  it.each([
    [aDone(), 'Saved a: kernel stood still 0.18 s, 35.4 MB new, 412 MB in all'],
    [aDone({ kind: 'suspend' }), 'Suspended a: 412 MB stored in 0.41 s'],
    [aDone({ result: null }), 'Saved a']
  ])('say what was done', (operation, text) => {
    expect(doneText(operation, 'a', trans)).toBe(text);
  });

  it('say what a resume did', () => {
    const result = { snapshot_id: 's', seconds: 2, raw_bytes: 1, gpu_bytes: 0 };
    const operation = { ...aDone(), kind: 'resume' as const, result };
    expect(doneText(operation, 'a', trans)).toBe('Resumed a: 1 B back in 2 s');
  });

  it.each([
    [0, null, 'read pages'],
    [50, 200, 'read pages 25%'],
    [300, 200, 'read pages 100%'],
    [0, 0, 'read pages']
  ])('say how far %d of %d is', (done_bytes, total_bytes, text) => {
    const progress = { stage: 'read_pages', seconds: 0 };
    expect(progressText({ ...progress, done_bytes, total_bytes })).toBe(text);
  });

  it('name every state, known or not', () => {
    expect(stateLabel('suspended', trans)).toBe('Suspended');
    expect(stateLabel('dreaming' as KernelState, trans)).toBe('dreaming');
  });

  it('say why the last operation failed', () => {
    const kernel = aKernel({
      state: 'suspended',
      reason: 'No GPU.',
      hint: null
    });
    expect(stateCaption(kernel, trans)).toBe(
      'The last operation failed: No GPU.'
    );
  });

  it('leave out an empty hint', () => {
    const record = { message: 'No.', code: 'x', hint: '' };
    expect(explain(record, trans)).toEqual(['No.']);
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
    [123.4, '123 s']
  ])('write %d seconds as %s', (seconds, text) => {
    expect(formatSeconds(seconds)).toBe(text);
  });
});
