import { GpuCkptApi } from '../shared/api';
import { KernelStates } from '../shared/kernel-states';
import { IN_FRONT_MS, unparkInFront } from '../kernel/unpark-in-front';
import { aKernel, FakeEvents, FakeServer } from './fakes';

const ASKED = 'POST kernels/k/expect_cell';
let server: FakeServer;
let current: string | null;
let look: () => void;
let hasFocus: jest.SpyInstance<boolean>;

beforeEach(async () => {
  server = new FakeServer()
    .on('GET kernels', {
      kernels: [
        aKernel({ state: 'parked' }),
        aKernel({ kernel_id: 'other', state: 'running' })
      ]
    })
    .on(ASKED, aKernel());
  const api = new GpuCkptApi(server.settings);
  const states = new KernelStates(api, new FakeEvents().stream);
  await states.refreshAll();
  current = 'k';
  hasFocus = jest.spyOn(document, 'hasFocus').mockReturnValue(true);
  look = unparkInFront(states, api, () => current);
  jest.useFakeTimers();
});

afterEach(() => {
  jest.useRealTimers();
  hasFocus.mockRestore();
});

const asked = () => server.requests.filter(request => request === ASKED).length;

describe('a notebook that comes to the front', () => {
  it('has its parked kernel unparked', async () => {
    look();
    expect(asked()).toBe(0);
    await jest.advanceTimersByTimeAsync(IN_FRONT_MS);
    expect(asked()).toBe(1);
  });

  it('with the page has it unparked, too', async () => {
    window.dispatchEvent(new Event('focus'));
    await jest.advanceTimersByTimeAsync(IN_FRONT_MS);
    expect(asked()).toBe(1);
  });

  it('asks once, however often it is told', async () => {
    look();
    await jest.advanceTimersByTimeAsync(IN_FRONT_MS / 2);
    look();
    look();
    await jest.advanceTimersByTimeAsync(10 * IN_FRONT_MS);
    expect(asked()).toBe(1);
  });

  it('and goes at once unparks nothing', async () => {
    look();
    current = 'other';
    look();
    await jest.advanceTimersByTimeAsync(10 * IN_FRONT_MS);
    expect(server.requests).toEqual(['GET kernels']);
  });

  it('in a page without the focus unparks nothing', async () => {
    hasFocus.mockReturnValue(false);
    look();
    await jest.advanceTimersByTimeAsync(10 * IN_FRONT_MS);
    expect(asked()).toBe(0);
  });

  it('whose kernel is not known unparks nothing', async () => {
    for (const id of [null, 'unknown', 'other']) {
      current = id;
      look();
      await jest.advanceTimersByTimeAsync(10 * IN_FRONT_MS);
    }
    expect(server.requests).toEqual(['GET kernels']);
  });

  it('says nothing where the server does not answer', async () => {
    server.on(ASKED, new TypeError('no network'));
    look();
    await jest.advanceTimersByTimeAsync(10 * IN_FRONT_MS);
    expect(asked()).toBe(1);
  });
});
