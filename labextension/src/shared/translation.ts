import type { ITranslator, TranslationBundle } from '@jupyterlab/translation';
import { nullTranslator } from '@jupyterlab/translation';

/** Return the texts of this extension; without a translator they are English. */
export function textsOf(translator: ITranslator | null): TranslationBundle {
  return (translator ?? nullTranslator).load('jupyter_gpuckpt');
}
