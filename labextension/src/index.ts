/**
 * Shows under its `%%gpu` cell what arrived while no page of the notebook was open, and runs notebooks in the background.
 *
 * JupyterLab shows output only to the page that ran the cell. When a page opens on a kernel of Baton's, this extension
 * opens a comm there (`baton_shim/notebook/pages.py`) and is told which cell runs and what earlier cells showed. It
 * follows the running cell, and puts complete outputs in their places.
 *
 * Invariant: a cell that this page has run itself is not touched.
 */

import { ICommandPalette } from '@jupyterlab/apputils';
import type { DocumentRegistry } from '@jupyterlab/docregistry';
import { INotebookTracker, type INotebookModel, type NotebookPanel } from '@jupyterlab/notebook';
import type { Contents, Kernel, ServiceManager } from '@jupyterlab/services';
import { ToolbarButton } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';

import { runInBackground } from './background';
import { Followed, place, save, type Complete, type Running } from './cells';
import { askWhatRuns } from './running';
import { keepKernel } from './session';

const TARGET = 'baton.output';

type Told = { running?: Running; cell?: Complete; save?: string };

async function isBaton(kernel: Kernel.IKernelConnection): Promise<boolean> {
  const spec = await kernel.spec;
  return spec?.argv.includes('baton_shim') ?? false;
}

/** When the file was last written, as far as this page knows; in seconds since the epoch. */
function saved(panel: NotebookPanel): number {
  const modified = panel.context.contentsModel?.last_modified;
  return modified ? Date.parse(modified) / 1000 : 0;
}

async function listen(
  panel: NotebookPanel,
  kernel: Kernel.IKernelConnection,
  contents: Contents.IManager
): Promise<void> {
  if (!(await isBaton(kernel)) || kernel.isDisposed) {
    return;
  }
  let followed: Followed | null = null;
  const onRunning = (running: Running): void => {
    if (followed?.request !== running.request) {
      followed?.end();
      followed = Followed.begin(panel, kernel, running);
    }
  };
  const comm = kernel.createComm(TARGET);
  comm.onMsg = message => {
    const told = message.content.data as Told;
    if (told.running) {
      onRunning(told.running);
    }
    if (told.cell) {
      if (followed?.request === told.cell.request) {
        followed.end();
        followed = null;
      }
      if (place(panel, told.cell)) {
        comm.send({ placed: told.cell.request });
      }
    }
    if (told.save) {
      void save(panel, contents);
    }
  };
  comm.open({ saved: saved(panel) });
  if (kernel.status !== 'idle') {
    await askWhatRuns(kernel, onRunning);
  }
}

async function follow(panel: NotebookPanel, services: ServiceManager.IManager): Promise<void> {
  const session = panel.sessionContext;
  keepKernel(session, services.sessions);
  await panel.context.ready;
  const connect = (): void => {
    const kernel = session.session?.kernel;
    if (kernel) {
      void listen(panel, kernel, services.contents);
    }
  };
  session.kernelChanged.connect(connect);
  connect();
}

/** What is used of JupyterLab or Notebook. */
interface Application {
  commands: CommandRegistry;
  docRegistry: DocumentRegistry;
  serviceManager: ServiceManager.IManager;
}

const output = {
  id: 'baton-jupyter:output',
  description: 'Shows under its %%gpu cell what arrived while no page was open.',
  autoStart: true,
  requires: [INotebookTracker],
  activate: (app: Application, tracker: INotebookTracker): void => {
    tracker.widgetAdded.connect((_, panel) => void follow(panel, app.serviceManager));
  }
};

const COMMAND = 'baton:run-in-background';
const LABEL = 'Run on GPU in the Background';

const background = {
  id: 'baton-jupyter:background',
  description: 'Runs the whole notebook as a job.',
  autoStart: true,
  requires: [INotebookTracker],
  optional: [ICommandPalette],
  activate: (app: Application, tracker: INotebookTracker, palette: ICommandPalette | null): void => {
    const run = (panel: NotebookPanel): void => {
      const open = (path: string): void => void app.commands.execute('docmanager:open', { path });
      void runInBackground(panel, app.serviceManager, open);
    };
    app.commands.addCommand(COMMAND, {
      label: LABEL,
      caption: 'Save the notebook, and run all of its cells on a GPU as one job, which continues after you close this page',
      isEnabled: () => tracker.currentWidget !== null,
      execute: () => {
        if (tracker.currentWidget) {
          run(tracker.currentWidget);
        }
      }
    });
    palette?.addItem({ command: COMMAND, category: 'Notebook Operations' });
    app.docRegistry.addWidgetExtension('Notebook', {
      createNew: (panel: NotebookPanel, _: DocumentRegistry.IContext<INotebookModel>) => {
        const button = new ToolbarButton({
          label: LABEL,
          tooltip: `${LABEL}: save the notebook, and run all of its cells as one job, which continues after you close this page`,
          onClick: () => run(panel)
        });
        if (!panel.toolbar.insertAfter('cellType', 'baton-background', button)) {
          panel.toolbar.addItem('baton-background', button);
        }
        return button;
      }
    });
  }
};

export default [output, background];
