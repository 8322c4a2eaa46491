import { LabIcon } from '@jupyterlab/ui-components';

import resumeSvg from '../style/icons/resume.svg';
import saveSvg from '../style/icons/save.svg';
import suspendSvg from '../style/icons/suspend.svg';
import type { OperationKind } from './protocol';

/** A camera, a moon and a sun. */
export const icons: Record<OperationKind, LabIcon> = {
  save: new LabIcon({ name: 'gpuckpt:save', svgstr: saveSvg }),
  suspend: new LabIcon({ name: 'gpuckpt:suspend', svgstr: suspendSvg }),
  resume: new LabIcon({ name: 'gpuckpt:resume', svgstr: resumeSvg })
};
