import { Signal } from '@lumino/signaling';

import { queueSaves, saveDocument } from '../shared/notebooks';

class FakeDocument {
  readonly stateChanged = new Signal<FakeDocument, unknown>(this);
  readonly save = jest.fn(async () => {
    this.dirty = this.staysDirty;
  });
  readonly model = this;
  staysDirty = false;

  constructor(
    public dirty: boolean,
    readonly collaborative = false
  ) {}

  becomesClean(): void {
    this.dirty = false;
    this.stateChanged.emit(undefined);
  }
}

const saved = (document: FakeDocument) =>
  saveDocument(document as unknown as Parameters<typeof saveDocument>[0]);

describe('saveDocument', () => {
  beforeEach(() => void jest.useFakeTimers());
  afterEach(() => void jest.useRealTimers());

  it('saves what has changes, and nothing else', async () => {
    const [clean, dirty] = [new FakeDocument(false), new FakeDocument(true)];
    expect(await saved(clean)).toBe(true);
    expect(clean.save).not.toHaveBeenCalled();
    expect(await saved(dirty)).toBe(true);
    expect(dirty.save).toHaveBeenCalledTimes(1);
    const refused = new FakeDocument(true);
    refused.staysDirty = true;
    expect(await saved(refused)).toBe(false);
  });

  it('leaves the save to a server that holds the document, and waits for it', async () => {
    const held = new FakeDocument(true, true);
    const done = saved(held);
    held.stateChanged.emit(undefined);
    held.becomesClean();
    expect(await done).toBe(true);
    expect(held.save).not.toHaveBeenCalled();
    expect(jest.getTimerCount()).toBe(0);
  });

  it('saves it itself if the server does not do so in time', async () => {
    const held = new FakeDocument(true, true);
    const done = saved(held);
    jest.runAllTimers();
    expect(await done).toBe(true);
    expect(held.save).toHaveBeenCalledTimes(1);
  });
});

describe('queueSaves', () => {
  /** A document whose saves end when the test says so. */
  class SlowDocument extends FakeDocument {
    readonly ends: ((isSaved: boolean) => void)[] = [];

    readonly save = jest.fn(
      () =>
        new Promise<void>((resolve, reject) => {
          this.ends.push(isSaved => {
            this.dirty &&= !isSaved;
            if (isSaved) {
              resolve();
            } else {
              reject(new Error('not saved'));
            }
          });
        })
    );
  }

  /** Let all promises that can be settled be settled. */
  const settled = () => new Promise(resolve => setTimeout(resolve, 0));

  it('lets a save before a suspend wait for the one that the user has begun', async () => {
    const document = new SlowDocument(true);
    const began = document.save;
    queueSaves(document);
    queueSaves(document); // a second view
    const byUser = document.save();
    const done = saved(document);
    await settled();
    expect(began).toHaveBeenCalledTimes(1);
    document.ends[0](true);
    await byUser;
    expect(await done).toBe(true);
    expect(began).toHaveBeenCalledTimes(1);

    document.dirty = true;
    const next = saved(document);
    await settled();
    expect(began).toHaveBeenCalledTimes(2);
    const meanwhile = document.save();
    await settled();
    expect(began).toHaveBeenCalledTimes(2);
    document.ends[1](true);
    expect(await next).toBe(true);
    await settled();
    document.ends[2](true);
    await meanwhile;
  });

  it('asks no second time after a save that failed or was cancelled, but later', async () => {
    const document = new SlowDocument(true);
    const began = document.save;
    queueSaves(document);
    const byUser = document.save();
    const done = saved(document);
    await settled();
    document.ends[0](false);
    await expect(byUser).rejects.toThrow('not saved');
    expect(await done).toBe(false);
    expect(began).toHaveBeenCalledTimes(1);

    const later = saved(document);
    await settled();
    document.ends[1](true);
    expect(await later).toBe(true);
  });
});
