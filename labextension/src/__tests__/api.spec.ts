import { GpuCkptApi, GpuCkptError, request } from '../shared/api';
import { aDone, aKernel, aSave, FakeServer, refused } from './fakes';

describe('request', () => {
  it('returns the body', async () => {
    const server = new FakeServer().on('GET kernels/k', aKernel());
    await expect(
      request('kernels/k', {}, server.settings)
    ).resolves.toMatchObject({ kernel_id: 'k' });
  });

  it('throws what the server says', async () => {
    const server = new FakeServer().on(
      'GET kernels',
      refused(409, { message: 'No.', code: 'kernel_busy', hint: 'Wait.' })
    );
    const failure = request('kernels', {}, server.settings);
    await expect(failure).rejects.toBeInstanceOf(GpuCkptError);
    await expect(failure).rejects.toMatchObject({
      message: 'No.',
      code: 'kernel_busy',
      hint: 'Wait.'
    });
  });

  it.each([
    [404, GpuCkptError.NO_EXTENSION],
    [502, 'http_502'],
    [200, 'http_200']
  ])('gives a page with status %i the code %s', async (status, code) => {
    const server = new FakeServer().on('GET kernels', {
      status,
      body: '<html>'
    });
    await expect(request('kernels', {}, server.settings)).rejects.toMatchObject(
      { code, details: '<html>' }
    );
  });

  it('gives a lost server a code of its own', async () => {
    const server = new FakeServer().on('GET kernels', new TypeError('gone'));
    await expect(request('kernels', {}, server.settings)).rejects.toMatchObject(
      { code: GpuCkptError.UNREACHABLE }
    );
  });
});

describe('GpuCkptApi', () => {
  const QUESTION = 'GET operations/o?wait=20';

  it('starts an operation by POST', async () => {
    const server = new FakeServer().on('POST kernels/k/save', aSave());
    const api = new GpuCkptApi(server.settings);
    await expect(api.start('save', 'k')).resolves.toEqual(aSave());
  });

  it('asks until an operation has ended', async () => {
    const server = new FakeServer().on(QUESTION, aSave(), aSave(), aDone());
    const api = new GpuCkptApi(server.settings);
    await expect(api.finish(aSave())).resolves.toEqual(aDone());
    expect(server.requests).toEqual([QUESTION, QUESTION, QUESTION]);
  });

  it('asks nothing about an operation that has ended', async () => {
    const server = new FakeServer();
    await new GpuCkptApi(server.settings).finish(aDone());
    expect(server.requests).toEqual([]);
  });

  it('asks until a template is built', async () => {
    const one = { name: 't', title: '', is_being_built: true, why: '' };
    const building = { templates: [{ ...one, error: null }] };
    const built = { ...one, title: 'T', is_being_built: false, error: null };
    const server = new FakeServer()
      .on('POST templates', building)
      .on('GET templates', building, { templates: [built] });
    const api = new GpuCkptApi(server.settings);
    await expect(api.makeTemplate('t', 's', 0)).resolves.toEqual(built);
    expect(server.requests).toEqual([
      'POST templates',
      'GET templates',
      'GET templates'
    ]);
  });

  it('outlasts a restart of the server', async () => {
    const gone = new TypeError('gone');
    const server = new FakeServer().on(QUESTION, gone, gone, aDone());
    const api = new GpuCkptApi(server.settings, 0);
    await expect(api.finish(aSave())).resolves.toEqual(aDone());
  });

  it('gives up on a server that stays away', async () => {
    const server = new FakeServer().on(QUESTION, new TypeError('gone'));
    const api = new GpuCkptApi(server.settings, 0);
    await expect(api.finish(aSave())).rejects.toMatchObject({
      code: GpuCkptError.UNREACHABLE
    });
  });

  it('does not repeat a question that the server refused', async () => {
    const record = { message: 'No.', code: 'operation_not_found', hint: '' };
    const server = new FakeServer().on(QUESTION, refused(404, record));
    const api = new GpuCkptApi(server.settings, 0);
    await expect(api.finish(aSave())).rejects.toMatchObject({
      code: 'operation_not_found'
    });
    expect(server.requests).toHaveLength(1);
  });
});
