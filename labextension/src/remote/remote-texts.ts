// All texts for users about remotes. Pure functions.

import type {
  FetchEstimate,
  SnapshotView,
  UploadView
} from '../shared/records';
import {
  formatAge,
  formatBytes,
  formatMoment,
  formatShare,
  nameOfPath
} from '../shared/format';
import type { IRemoteChoice } from './remotes';
import { explain } from '../shared/texts';
import { trans } from '../shared/translation';

/** The states of uploads, the most important first. */
const BY_WEIGHT: readonly UploadView['state'][] = [
  'failed',
  'uploading',
  'waiting',
  'uploaded'
];

/** Return the upload that a snapshot's badge shows; null if the snapshot is uploaded to no remote. */
export function weightiest(uploads: readonly UploadView[]): UploadView | null {
  return uploads.reduce<UploadView | null>(
    (found, one) =>
      found && BY_WEIGHT.indexOf(found.state) <= BY_WEIGHT.indexOf(one.state)
        ? found
        : one,
    null
  );
}

/** Return the state of an upload in a word or two. */
export function uploadLabel(upload: UploadView): string {
  switch (upload.state) {
    case 'uploading':
      return upload.total_bytes > 0
        ? trans.__('uploading %1', share(upload))
        : trans.__('uploading');
    case 'waiting':
      return trans.__('not uploaded yet');
    case 'failed':
      return trans.__('upload failed');
    default:
      return trans.__('uploaded');
  }
}

/** Return the state of an upload in a sentence, with the remote and the error. */
export function uploadCaption(upload: UploadView): string {
  const { remote, state, done_bytes, total_bytes, error } = upload;
  const texts: Record<UploadView['state'], string> = {
    uploading: trans.__(
      'Uploading to “%1”: %2 of %3.',
      remote,
      formatBytes(Math.min(done_bytes, total_bytes)),
      formatBytes(total_bytes)
    ),
    waiting: trans.__('Waiting to be uploaded to “%1”.', remote),
    failed: trans.__('Not uploaded to “%1”.', remote),
    uploaded: trans.__('Uploaded to “%1”.', remote)
  };
  const reason = error ? explain(error) : [];
  return [texts[state], ...reason].join(' ');
}

/** Return a text about the place of a snapshot's content and the states of its uploads; '' if it is uploaded to no remote. */
export function uploadsCaption({
  uploads,
  remote_only
}: Pick<SnapshotView, 'uploads' | 'remote_only'>): string {
  const found = uploads.map(upload => uploadCaption(upload));
  if (remote_only !== null) {
    found.unshift(
      remote_only
        ? trans.__('Stored only in “%1”. Resuming downloads it.', remote_only)
        : trans.__('Stored only in a remote. Resuming downloads it.')
    );
  }
  return found.join('\n');
}

/** Return a sentence about what happens to the copies in remotes of a deleted snapshot; '' if no remote has one. */
export function copiesOfDeleted({
  uploads,
  pinned
}: Pick<SnapshotView, 'uploads' | 'pinned'>): string {
  const remotes = uploads
    .filter(({ state }) => state === 'uploaded')
    .map(({ remote }) => trans.__('“%1”', remote));
  const names = remotes.join(', ');
  if (remotes.length === 0) {
    return '';
  }
  return pinned
    ? trans.__('It is pinned, so %1 keeps its copy.', names)
    : trans._n(
        'Its copy in %2 will be deleted, too.',
        'Its copies in %2 will be deleted, too.',
        remotes.length,
        names
      );
}

/** Return the name of a remote session for users. */
export function remoteTitle({ session, snapshot }: IRemoteChoice): string {
  return snapshot.title || session.title || nameOfPath(session.path);
}

/** Return a text about the size of a fetch, and the memory that its kernel needs. */
export function movedText(estimate: FetchEstimate): string {
  const { snapshot, move_bytes, here_bytes } = estimate;
  const memory = trans.__(
    'The kernel needs %1 of memory.',
    formatBytes(snapshot.raw_bytes)
  );
  const moved =
    here_bytes > 0
      ? trans.__(
          '%1 to download; %2 already on this machine.',
          formatBytes(move_bytes),
          formatBytes(here_bytes)
        )
      : trans.__('%1 to download.', formatBytes(move_bytes));
  return `${moved} ${memory}`;
}

/** Return sentences about a session: where it runs now, when it was last saved there, and what happens to that copy. */
export function whereTexts({ session, snapshot }: FetchEstimate): string[] {
  const saved = formatAge(snapshot.created);
  const { leased_to, leased_since } = session;
  if (leased_to) {
    return [
      trans.__(
        'It runs on %1 now, since %2. It was last saved there %3.',
        leased_to,
        formatMoment(leased_since),
        saved
      ),
      trans.__(
        'This machine takes it over from that snapshot. The kernel on %1 is not stopped: it keeps writing files and sending requests, as a separate session. What it did after that snapshot is missing here.',
        leased_to
      )
    ];
  }
  const host = session.host_name || trans.__('an unnamed machine');
  return [
    trans.__('It runs nowhere now. It was last saved on %1 %2.', host, saved),
    trans.__(
      'The copy on %1 stays. Resuming it there asks first, because the session is on this machine then.',
      host
    )
  ];
}

function share({ done_bytes, total_bytes }: UploadView): string {
  return formatShare(Math.min(done_bytes, total_bytes), total_bytes);
}
