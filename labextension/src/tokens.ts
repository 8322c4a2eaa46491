import { Token } from '@lumino/coreutils';
import type { ISignal } from '@lumino/signaling';

import type { GpuCkptError } from './api';
import type { IKernel, IOperation, OperationKind } from './protocol';

/** What is known of every kernel, and the operations on them. */
export interface IKernelStates {
  /** Emitted with the kernel's id when something about a kernel changed; with '' when any may have. */
  readonly changed: ISignal<IKernelStates, string>;

  /** The kernel, or undefined while nothing is known of it. */
  get(kernelId: string): IKernel | undefined;

  /** Why nothing is known of the kernel, once the server has been asked in vain. */
  problem(kernelId: string): GpuCkptError | null;

  /** What has been asked for or runs on the kernel, in any tab or shell. */
  inFlight(kernelId: string): OperationKind | null;

  /** Ask the server again about one kernel. */
  refresh(kernelId: string): Promise<void>;

  /**
   * Save, suspend or resume a kernel.
   *
   * @returns the operation when it has succeeded.
   * @throws GpuCkptError when it was refused, failed or was cancelled.
   */
  run(kind: OperationKind, kernelId: string): Promise<IOperation>;
}

export const IKernelStates = new Token<IKernelStates>(
  'jupyter-gpuckpt:IKernelStates',
  'The state of every kernel under the engine, and the operations on them.'
);
