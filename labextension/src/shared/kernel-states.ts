// The state of every kernel: requested once, then kept up to date by the event stream.

import type { Event } from '@jupyterlab/services';
import type { JSONObject } from '@lumino/coreutils';
import { Signal } from '@lumino/signaling';

import type { GpuCkptApi } from './api';
import { asOurs, GpuCkptError } from './api';
import type {
  IEnd,
  KernelView,
  IOperation,
  ProgressRecord,
  KernelState,
  OperationKind
} from './records';
import { isEndEvent, isKernelAction, isKernelEvent } from './server-events';

/** Stands for all kernels in the place of a kernel's id. */
const ALL = '';

/** The state in which a kernel is ready for its next operation although the end of the one that led there is not reported yet. */
const REACHED: Partial<Record<OperationKind, KernelState>> = {
  suspend: 'suspended',
  resume: 'running',
  park: 'parked',
  unpark: 'running'
};

/** The state of every kernel, and the operations on them. */
export class KernelStates {
  constructor(
    private readonly _api: GpuCkptApi,
    stream: Event.Stream
  ) {
    stream.connect(this._onEvent, this);
  }

  /** A signal with the id of a kernel that changed; '' if any kernel may have changed. */
  readonly changed = new Signal<this, string>(this);

  /** A signal for the end of an operation that this page has not requested. */
  readonly endedElsewhere = new Signal<this, IEnd>(this);

  /** Return a kernel; undefined while it is not known. */
  get(kernelId: string): KernelView | undefined {
    return this._kernels.get(kernelId);
  }

  /** Return all known kernels. */
  all(): KernelView[] {
    return [...this._kernels.values()];
  }

  /** Return the error of the last request about a kernel or about all kernels; null if it succeeded. */
  problem(kernelId: string): GpuCkptError | null {
    return this._problems.get(kernelId) ?? this._problems.get(ALL) ?? null;
  }

  /** Return the kind of the operation that was requested or runs on a kernel, by any client; else null. */
  inFlight(kernelId: string): OperationKind | null {
    const kernel = this._kernels.get(kernelId);
    const kind =
      this._asked.get(kernelId)?.kind ?? kernel?.operation?.kind ?? null;
    // Users act on the state that they see. They must not have to wait until the reply to an earlier request has arrived.
    return kind !== null && REACHED[kind] === kernel?.state ? null : kind;
  }

  /** Request one kernel again. */
  async refresh(kernelId: string): Promise<void> {
    const ticket = this._nextTicket();
    await this._ask(kernelId, async () =>
      this._learn(await this._api.kernel(kernelId), ticket)
    );
  }

  /** Request all kernels again, because events may have been lost. */
  async refreshAll(): Promise<void> {
    const ticket = this._nextTicket();
    await this._ask(ALL, async () => {
      const kernels = await this._api.kernels();
      const listed = new Set(kernels.map(kernel => kernel.kernel_id));
      for (const id of this._kernels.keys()) {
        if (!listed.has(id)) {
          this._forget(id, ticket);
        }
      }
      kernels.forEach(kernel => this._learn(kernel, ticket));
    });
  }

  /**
   * Save, suspend, resume ... a kernel.
   *
   * @returns the operation when it has succeeded.
   * @throws GpuCkptError when it was refused, failed or was cancelled.
   */
  async run(
    kind: OperationKind,
    kernelId: string,
    body: JSONObject = {}
  ): Promise<IOperation> {
    const asked = { kind };
    this._asked.set(kernelId, asked);
    this.changed.emit(kernelId);
    try {
      return await this.finish(this._api.start(kind, kernelId, body));
    } finally {
      if (this._asked.get(kernelId) === asked) {
        this._asked.delete(kernelId);
      }
      // The event of the operation's end may not have arrived yet, or may be lost with a connection.
      await this.refresh(kernelId);
      this.changed.emit(kernelId);
    }
  }

  /**
   * Start a kernel from a snapshot, as `GpuCkptApi.startFrom` does; return and throw as `run` does. `onStarted` is called with the
   * operation as soon as it has an id.
   */
  async runFrom(
    kind: 'branch' | 'resume',
    snapshotId: string,
    body: JSONObject = {},
    onStarted: (operation: IOperation) => void = () => undefined
  ): Promise<IOperation> {
    this._branching += 1;
    try {
      const started = this._api.startFrom(kind, snapshotId, body);
      void started.then(onStarted, () => undefined);
      const { path } = await started;
      const operation = await this.finish(started);
      await this.refresh(operation.kernel_id);
      return { ...operation, kind, path };
    } finally {
      this._branching -= 1;
    }
  }

  /** Ask the operation in flight on a kernel to stop and to undo its work. */
  async cancel(kernelId: string): Promise<void> {
    const operation = this._kernels.get(kernelId)?.operation;
    if (operation) {
      await this._api.cancel(operation.operation_id);
    }
  }

  /** Wait for the end of an operation that this page has requested; return and throw as `run` does. */
  async finish(
    started: Promise<IOperation>,
    onProgress?: (progress: ProgressRecord) => void
  ): Promise<IOperation> {
    const operation = await started;
    this._own.add(operation.operation_id);
    return succeeded(await this._api.finish(operation, onProgress));
  }

  /** Request `subject`, a kernel or `ALL`, from the server; store the error if that fails. */
  private async _ask(subject: string, question: () => Promise<void>) {
    try {
      await question();
      this._problems.delete(subject);
    } catch (reason) {
      const error = asOurs(reason);
      if (error.code !== GpuCkptError.UNREACHABLE) {
        this._kernels.delete(subject);
      }
      this._problems.set(subject, error);
      this.changed.emit(subject);
    }
  }

  private _onEvent(_: Event.IManager, event: Event.Emission): void {
    if (isKernelEvent(event)) {
      this._learn(event, this._nextTicket());
    } else if (isEndEvent(event)) {
      if (!this._isOwn(event)) {
        this.endedElsewhere.emit(event);
      } else if (
        this._own.has(event.operation_id) &&
        this._asked.get(event.kernel_id)?.kind === event.kind
      ) {
        // The reply to the request for this end may come much later.
        this._asked.delete(event.kernel_id);
        this.changed.emit(event.kernel_id);
      }
    } else if (isKernelAction(event) && event.status === 'success') {
      this._onAction(event.action, event.kernel_id ?? '');
    }
  }

  private _onAction(action: string, kernelId: string): void {
    if (action === 'shutdown') {
      this._forget(kernelId, this._nextTicket());
    } else if (action === 'start' && kernelId) {
      void this.refresh(kernelId);
    }
  }

  /** Return whether this page has requested an operation. The event of its end may come before the reply with its id. */
  private _isOwn(end: IEnd): boolean {
    return (
      this._own.has(end.operation_id) ||
      // A rollback consists of other operations; a branch ends with the resume of a kernel that is not known yet.
      this._asked.has(end.kernel_id) ||
      (this._branching > 0 && !this._kernels.has(end.kernel_id))
    );
  }

  /** Store the kernel from the request with this `ticket`, unless a newer record is known. */
  private _learn(kernel: KernelView, ticket: number): void {
    const id = kernel.kernel_id;
    if (ticket < (this._tickets.get(id) ?? 0)) {
      return;
    }
    this._tickets.set(id, ticket);
    this._kernels.set(id, kernel);
    this._problems.delete(id);
    this._problems.delete(ALL);
    this.changed.emit(id);
  }

  private _forget(kernelId: string, ticket: number): void {
    if (ticket >= (this._tickets.get(kernelId) ?? 0)) {
      this._tickets.set(kernelId, ticket);
      this._kernels.delete(kernelId);
      this.changed.emit(kernelId);
    }
  }

  private _nextTicket(): number {
    this._lastTicket += 1;
    return this._lastTicket;
  }

  private readonly _kernels = new Map<string, KernelView>();
  private readonly _problems = new Map<string, GpuCkptError>();
  /** The last operation that this page has requested on each kernel, until its end is known. */
  private readonly _asked = new Map<string, { kind: OperationKind }>();
  /** The operations that this page has requested. */
  private readonly _own = new Set<string>();
  private _branching = 0;
  /** The order of requests and events, by kernel: a reply never replaces a record that came after its request. */
  private readonly _tickets = new Map<string, number>();
  private _lastTicket = 0;
}

function succeeded(operation: IOperation): IOperation {
  if (operation.state === 'succeeded') {
    return operation;
  }
  const record = operation.error ?? {
    message: `The operation ended as ${operation.state}.`,
    code: operation.state
  };
  throw new GpuCkptError(
    operation.state === 'cancelled'
      ? { ...record, code: GpuCkptError.CANCELLED }
      : record
  );
}
