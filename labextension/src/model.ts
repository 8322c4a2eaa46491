// The state of every kernel: asked for once, then kept by the event stream.

import type { Event, ServerConnection } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';

import { GpuCkptApi, GpuCkptError } from './api';
import type { IKernel, IOperation, OperationKind } from './protocol';
import { isKernelEvent } from './protocol';
import type { IKernelStates } from './tokens';

/** Stands for every kernel where one kernel's id is asked for. */
const ALL = '';

export class KernelStates implements IKernelStates, IDisposable {
  constructor(options: KernelStates.IOptions) {
    this._api = new GpuCkptApi(options.serverSettings, options.retrySeconds);
    this._stream = options.stream;
    this._stream.connect(this._onEvent, this);
    this.ready = this._refreshAll();
  }

  /** Resolves when the server has been asked for the first time, whatever it answered. */
  readonly ready: Promise<void>;

  get changed(): ISignal<this, string> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  get(kernelId: string): IKernel | undefined {
    return this._kernels.get(kernelId);
  }

  problem(kernelId: string): GpuCkptError | null {
    return this._problems.get(kernelId) ?? this._problems.get(ALL) ?? null;
  }

  inFlight(kernelId: string): OperationKind | null {
    return (
      this._asked.get(kernelId) ??
      this._kernels.get(kernelId)?.operation?.kind ??
      null
    );
  }

  async refresh(kernelId: string): Promise<void> {
    const ticket = this._nextTicket();
    await this._ask(kernelId, async () =>
      this._learn(await this._api.kernel(kernelId), ticket)
    );
  }

  async run(kind: OperationKind, kernelId: string): Promise<IOperation> {
    this._asked.set(kernelId, kind);
    this._changed.emit(kernelId);
    try {
      const started = await this._api.start(kind, kernelId);
      return succeeded(await this._api.finish(started));
    } finally {
      if (this._asked.get(kernelId) === kind) {
        this._asked.delete(kernelId);
      }
      // The event of the end may still be under way, or lost with a connection.
      await this.refresh(kernelId);
      this._changed.emit(kernelId);
    }
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this._stream.disconnect(this._onEvent, this);
    Signal.clearData(this);
  }

  private async _refreshAll(): Promise<void> {
    const ticket = this._nextTicket();
    await this._ask(ALL, async () =>
      (await this._api.kernels()).forEach(kernel => this._learn(kernel, ticket))
    );
  }

  /** Ask the server about `subject`, a kernel or `ALL`, and remember if that was in vain. */
  private async _ask(subject: string, question: () => Promise<void>) {
    try {
      await question();
      this._problems.delete(subject);
    } catch (error) {
      if (!(error instanceof GpuCkptError)) {
        throw error;
      }
      if (error.code !== GpuCkptError.UNREACHABLE) {
        this._kernels.delete(subject);
      }
      this._problems.set(subject, error);
      this._changed.emit(subject);
    }
  }

  private _onEvent(_: Event.IManager, event: Event.Emission): void {
    if (isKernelEvent(event)) {
      this._learn(event, this._nextTicket());
    }
  }

  /** Take in what was asked for with `ticket`, unless something newer is known. */
  private _learn(kernel: IKernel, ticket: number): void {
    const id = kernel.kernel_id;
    if (this._isDisposed || ticket < (this._tickets.get(id) ?? 0)) {
      return;
    }
    this._tickets.set(id, ticket);
    this._kernels.set(id, kernel);
    this._problems.delete(id);
    this._problems.delete(ALL);
    this._changed.emit(id);
  }

  private _nextTicket(): number {
    this._lastTicket += 1;
    return this._lastTicket;
  }

  private readonly _api: GpuCkptApi;
  private readonly _stream: Event.Stream;
  private readonly _kernels = new Map<string, IKernel>();
  private readonly _problems = new Map<string, GpuCkptError>();
  private readonly _asked = new Map<string, OperationKind>();
  private readonly _changed = new Signal<this, string>(this);
  /** Orders questions and events: an answer never replaces what was learnt after it was asked for. */
  private readonly _tickets = new Map<string, number>();
  private _lastTicket = 0;
  private _isDisposed = false;
}

export namespace KernelStates {
  export interface IOptions {
    stream: Event.Stream;
    serverSettings?: ServerConnection.ISettings;
    /** Seconds between two attempts to reach a lost server. */
    retrySeconds?: number;
  }
}

function succeeded(operation: IOperation): IOperation {
  if (operation.state === 'succeeded') {
    return operation;
  }
  const record = operation.error ?? {
    message: `The operation ended as ${operation.state}.`,
    code: operation.state,
    hint: null
  };
  throw new GpuCkptError(
    operation.state === 'cancelled'
      ? { ...record, code: GpuCkptError.CANCELLED }
      : record
  );
}
