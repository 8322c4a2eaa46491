import { Signal } from '@lumino/signaling';

import { saveDocument } from '../notebooks';

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
