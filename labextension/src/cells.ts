/**
 * Outputs of cells that this page has not run: those that come while a cell runs, and complete ones.
 *
 * Invariant: of a notebook only cells with the kernel's id for them change.
 */

import type { ICodeCellModel } from '@jupyterlab/cells';
import type { IOutput } from '@jupyterlab/nbformat';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { Contents, Kernel, KernelMessage } from '@jupyterlab/services';

/** A cell by its id, and the message with which an earlier page asked for it. */
interface Named {
  id: string;
  request: string;
  execution_count: number;
}

export type Running = Named;

export interface Complete extends Named {
  outputs: IOutput[];
}

function find(panel: NotebookPanel, id: string): ICodeCellModel | undefined {
  for (const cell of panel.content.model?.cells ?? []) {
    if (cell.id === id && cell.type === 'code') {
      return cell as ICodeCellModel;
    }
  }
  return undefined;
}

/** Puts everything that a cell showed in its place. Nothing was edited, so the notebook does not count as changed. */
export function place(panel: NotebookPanel, complete: Complete): boolean {
  const cell = find(panel, complete.id);
  if (!cell) {
    return false;
  }
  const { model } = panel.context;
  const { dirty } = model;
  // The student ran it in this kernel, which is what makes JupyterLab trust the output of a cell.
  cell.trusted = true;
  cell.outputs.fromJSON(complete.outputs);
  cell.executionCount = complete.execution_count;
  cell.executionState = 'idle';
  model.dirty = dirty;
  return true;
}

/** Saves the notebook, unless another page has saved it since: JupyterLab would ask which version to keep. */
export async function save({ context }: NotebookPanel, contents: Contents.IManager): Promise<void> {
  if (context.model.readOnly || !context.contentsModel?.writable) {
    return;
  }
  const onDisk = await contents.get(context.path, { content: false });
  if (onDisk.last_modified === context.contentsModel.last_modified) {
    await context.save();
  }
}

/** A cell that runs: shown as such, with the outputs that come from now on. The rest is known at its end. */
export class Followed {
  private readonly displays = new Map<string, number>();

  private constructor(
    private readonly kernel: Kernel.IKernelConnection,
    private readonly cell: ICodeCellModel,
    readonly request: string
  ) {
    cell.trusted = true;
    cell.executionState = 'running';
    kernel.iopubMessage.connect(this.onMessage, this);
  }

  static begin(panel: NotebookPanel, kernel: Kernel.IKernelConnection, running: Running): Followed | null {
    const cell = find(panel, running.id);
    return cell ? new Followed(kernel, cell, running.request) : null;
  }

  end(): void {
    this.kernel.iopubMessage.disconnect(this.onMessage, this);
  }

  private onMessage(_: unknown, message: KernelMessage.IIOPubMessage): void {
    const parent = message.parent_header as { msg_id?: string };
    if (parent.msg_id !== this.request) {
      return;
    }
    const { outputs } = this.cell;
    const kind = message.header.msg_type;
    if (kind === 'clear_output') {
      outputs.clear((message as KernelMessage.IClearOutputMsg).content.wait);
      this.displays.clear();
    } else if (kind === 'update_display_data') {
      const { transient, ...content } = (message as KernelMessage.IUpdateDisplayDataMsg).content;
      const index = this.displays.get(transient.display_id);
      if (index !== undefined) {
        outputs.set(index, { output_type: 'display_data', ...content });
      }
    } else if (kind === 'display_data') {
      const { transient, ...content } = (message as KernelMessage.IDisplayDataMsg).content;
      const length = outputs.add({ output_type: kind, ...content });
      if (transient?.display_id) {
        this.displays.set(transient.display_id, length - 1);
      }
    } else if (kind === 'stream' || kind === 'error') {
      outputs.add({ output_type: kind, ...(message as KernelMessage.IStreamMsg | KernelMessage.IErrorMsg).content });
    }
  }
}
