// The texts of this extension in the language of the page.

import type { ITranslator } from '@jupyterlab/translation';
import { nullTranslator } from '@jupyterlab/translation';

export let trans = nullTranslator.load('jupyter_gpuckpt');

/** Take the texts from JupyterLab's translator; without one they are English. */
export function translate(translator: ITranslator | null): void {
  trans = (translator ?? nullTranslator).load('jupyter_gpuckpt');
}
