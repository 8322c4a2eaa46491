// The notification, once at the start of a page, that no kernel can be saved on this machine: the cause, the remedy and the doctor's report.

import * as React from 'react';

import type { GpuCkptApi } from '../shared/api';
import { asOurs, GpuCkptError } from '../shared/api';
import { Sentence, show, Table } from '../shared/dialogs';
import { tellProblem } from '../shared/notices';
import type { Check } from '../shared/records';
import { explain } from '../shared/texts';
import { trans } from '../shared/translation';

/** The key under which the browser keeps the cause of which its user does not want to be told again. */
const NOT_AGAIN = 'jupyter-gpuckpt:not-again';

/** The errors of the request after which no kernel can be saved. After others the next request may succeed. */
const LASTING = [GpuCkptError.NO_EXTENSION, GpuCkptError.NO_DAEMON];

/** Notify the user if no kernel can be saved on this machine, unless they do not want to be told of this cause again. */
export async function checkMachine(api: GpuCkptApi): Promise<void> {
  const { sentences, checks } = await problemOf(api);
  const [cause] = sentences;
  if (!cause || localStorage.getItem(NOT_AGAIN) === cause) {
    return;
  }
  const headline = trans.__('Kernels cannot be saved here');
  tellProblem(headline, sentences, {
    autoClose: false,
    details: () => showReport(headline, sentences, checks),
    actions: [
      {
        label: trans.__('Don’t Repeat'),
        caption: trans.__('Do not show this cause again in this browser'),
        callback: () => localStorage.setItem(NOT_AGAIN, cause)
      }
    ]
  });
}

/** Return the sentences about why no kernel can be saved, none if one can, and the doctor's checks. */
async function problemOf(
  api: GpuCkptApi
): Promise<{ sentences: string[]; checks: Check[] }> {
  try {
    const { engine_available, reason, hint, checks } = await api.host();
    return { sentences: engine_available ? [] : [reason, hint], checks };
  } catch (reason) {
    const error = asOurs(reason);
    const lasts = LASTING.includes(error.code);
    return { sentences: lasts ? explain(error) : [], checks: [] };
  }
}

function showReport(
  headline: string,
  sentences: string[],
  checks: Check[]
): Promise<void> {
  const results = {
    true: trans.__('passed'),
    false: trans.__('failed'),
    null: '–'
  };
  return show(
    headline,
    <div className="jp-GpuCkptDialog jp-GpuCkptDetails">
      {sentences.map(sentence => (
        <Sentence key={sentence} text={sentence} />
      ))}
      {checks.length > 0 ? (
        <Table
          caption={trans.__('This machine')}
          head={[trans.__('Check'), trans.__('Result'), trans.__('Finding')]}
          rows={checks.map(({ name, ok, message, fix }) => [
            name,
            results[`${ok}`],
            <>
              {message}
              {fix ? <pre tabIndex={0}>{fix}</pre> : null}
            </>
          ])}
        />
      ) : null}
    </div>
  );
}
