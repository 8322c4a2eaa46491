// Shows output that the server has kept for a cell in that cell.
//
// JupyterLab shows the output of cells that this page has run. After a reload, or under the next server, another page has run
// the cell: the server then sends its output from the beginning, with the cell's id in the metadata.

import type { CodeCell } from '@jupyterlab/cells';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { KernelMessage } from '@jupyterlab/services';

type Output = Parameters<CodeCell['outputArea']['model']['add']>[0];

/** A cell that is being filled, and the places of its displays that have an id. */
interface IFilled {
  cellId: string;
  displays: Map<string, number[]>;
}

export class KeptOutput {
  constructor(private readonly _panel: NotebookPanel) {
    // The session context is disposed with the panel, so the signal need not be disconnected.
    _panel.sessionContext.iopubMessage.connect(this._onMessage, this);
    // Messages may come before the notebook has cells.
    void Promise.all([_panel.context.ready, _panel.revealed]).then(() => {
      const early = this._early ?? [];
      this._early = null;
      early.forEach(message => this._show(message));
    });
  }

  private _onMessage(_: unknown, message: KernelMessage.IMessage): void {
    if (this._early) {
      this._early.push(message);
    } else {
      this._show(message);
    }
  }

  private _show(message: KernelMessage.IMessage): void {
    const parent = message.parent_header as Partial<KernelMessage.IHeader>;
    const kernel = this._panel.sessionContext.session?.kernel;
    const request = parent.msg_id;
    if (
      this._panel.isDisposed ||
      !request ||
      parent.session === kernel?.clientId
    ) {
      return; // this page has run the cell
    }
    const { cellId } = message.metadata;
    if (typeof cellId === 'string' && !this._filled.has(request)) {
      this._filled.set(request, { cellId, displays: new Map() });
    }
    const filled = this._filled.get(request);
    const cell = filled && this._cell(filled.cellId);
    // If this page has run the cell again, older output must not be added.
    if (filled && cell && !cell.outputArea.future) {
      this._apply(message, request, filled, cell);
    }
  }

  private _apply(
    message: KernelMessage.IMessage,
    request: string,
    filled: IFilled,
    cell: CodeCell
  ): void {
    const model = cell.outputArea.model;
    const content = message.content as Record<string, unknown>;
    const kind = message.header.msg_type;
    switch (kind) {
      case 'execute_input':
        model.clear();
        filled.displays.clear();
        cell.model.executionCount = content.execution_count as number;
        cell.setPrompt('*');
        break;
      case 'status':
        if (content.execution_state === 'idle') {
          cell.setPrompt(`${cell.model.executionCount ?? ''}`);
          this._filled.delete(request);
        }
        break;
      case 'clear_output':
        model.clear(content.wait as boolean);
        filled.displays.clear();
        break;
      case 'update_display_data':
        for (const index of filled.displays.get(displayId(content)) ?? []) {
          model.set(index, asOutput(content, 'display_data'));
        }
        break;
      case 'stream':
      case 'error':
      case 'execute_result':
      case 'display_data': {
        const length = model.add(asOutput(content, kind));
        const id = displayId(content);
        if (id) {
          const known = filled.displays.get(id) ?? [];
          filled.displays.set(id, [...known, length - 1]);
        }
        break;
      }
    }
  }

  private _cell(cellId: string): CodeCell | undefined {
    return this._panel.content.widgets.find(
      (cell): cell is CodeCell =>
        cell.model.type === 'code' && cell.model.id === cellId
    );
  }

  /** The messages that came before the notebook had cells; null afterwards. */
  private _early: KernelMessage.IMessage[] | null = [];
  /** The cells that are being filled, by the id of the request that runs them. */
  private readonly _filled = new Map<string, IFilled>();
}

function asOutput(content: Record<string, unknown>, kind: string): Output {
  return { ...content, output_type: kind } as unknown as Output;
}

function displayId(content: Record<string, unknown>): string {
  const transient = content.transient as { display_id?: string } | undefined;
  return transient?.display_id ?? '';
}
