import { atRisk, riskText, unsavedText } from '../kernel/at-risk';
import type { KernelView, SnapshotView, UploadView } from '../shared/records';
import { aKernel, aSnapshot, anUpload } from './fakes';

const NOW = 10_000;

/** A snapshot of that age, in seconds, with an upload in this state. */
const saved = (age: number, state?: UploadView['state'], changes = {}) =>
  aSnapshot({
    created: NOW - age,
    uploads: state ? [anUpload({ state, ...changes })] : []
  });

const text = (kernel: Partial<KernelView>, ...snapshots: SnapshotView[]) => {
  const found = aKernel(kernel);
  const risk = atRisk(found, snapshots, NOW);
  return risk && riskText(risk, found, snapshots);
};

describe('what would be lost with this machine', () => {
  it('is not said where nothing goes to a remote', () => {
    expect(text({})).toBeNull();
    expect(text({}, saved(10))).toBeNull();
  });

  it('is nothing while a remote has all of it', () => {
    const nothing = 'If this machine vanished now, you would lose nothing.';
    const suspended = { state: 'suspended' } as const;
    expect(text(suspended, saved(500, 'uploaded'))).toBe(nothing);
    // It has not changed since.
    const idle = { autosave_seconds: 60 };
    expect(text(idle, saved(5000, 'uploaded'))).toBe(nothing);
  });

  it('is what has changed since, at most about the interval', () => {
    const busy = { autosave_seconds: 300, changed_at: NOW - 120 };
    expect(text(busy, saved(200, 'uploaded'))).toBe(
      'If this machine vanished now, you would lose the last 2 min; it is saved about every 5 min.'
    );
    // What is not uploaded yet is not safe.
    expect(text(busy, saved(30, 'waiting'), saved(240, 'uploaded'))).toBe(
      'If this machine vanished now, you would lose the last 4 min; it is saved about every 5 min.'
    );
    const suspended = { state: 'suspended' } as const;
    expect(text(suspended, saved(0, 'waiting'), saved(60, 'uploaded'))).toBe(
      'If this machine vanished now, you would lose the last 60 s at most.'
    );
  });

  it('is bounded by the age of the last upload if nobody looks for changes', () => {
    expect(text({}, saved(120, 'uploaded'))).toBe(
      'If this machine vanished now, you would lose the last 2 min at most.'
    );
    expect(text({}, saved(120, 'waiting'))).toBe(
      'If this machine vanished now, you would lose all of it: no remote has it yet.'
    );
  });

  it('is a warning with the reason when periodic saves do not limit it', () => {
    const error = { message: 'Denied.', code: 'denied', hint: 'Log in.' };
    const busy = { autosave_seconds: 60, changed_at: NOW - 20 };
    const waits = saved(30, 'waiting', { error });
    const late = [waits, saved(151, 'uploaded')];
    expect(atRisk(aKernel(busy), late, NOW)?.isLate).toBe(true);
    expect(text(busy, ...late)).toMatch(
      /^If this machine vanished now, you would lose the last .*, although it is saved every 60 s\. Denied\. Log in\.$/
    );
    const inTime = [waits, saved(149, 'uploaded')];
    expect(atRisk(aKernel(busy), inTime, NOW)?.isLate).toBe(false);
    const never = { ...busy, changed_at: NOW - 151 };
    expect(text(never, saved(160, 'waiting'))).toBe(
      'If this machine vanished now, you would lose all of it, although it is saved every 60 s.'
    );
  });
});

describe('what would be lost with the kernel', () => {
  const lost = (changes: Partial<KernelView>) =>
    unsavedText(aKernel(changes), NOW);

  it('is what changed since it was saved', () => {
    expect(lost({ changed_at: null })).toBe('');
    expect(lost({ changed_at: NOW - 12 })).toBe(
      'If this kernel ended now, you would lose the last 12 s.'
    );
    expect(lost({ changed_at: NOW - 12, state: 'suspended' })).toBe('');
  });
});
