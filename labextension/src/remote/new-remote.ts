// What a user enters about a new remote, and the request that it becomes. Pure functions.

import type { NewRemote, TriedRemote } from '../shared/records';
import { trans } from '../shared/translation';

/** The kinds of places, by the schemes of their URLs. */
export const PLACES = ['file', 's3', 'gs', 'az'] as const;
export type Place = (typeof PLACES)[number];

/** The fields of a place: parts of its URL, and settings that have the server's names. */
type Field =
  | 'folder'
  | 'bucket'
  | 'prefix'
  | 'region'
  | 'endpoint'
  | 'profile'
  | 'account_name';

/** The entries of the form. The dialog forgets them when it is closed. */
export interface IEntries {
  /** Whether a store that is there is joined; else a new one is made. */
  joins: boolean;
  place: Place;
  name: string;
  texts: Partial<Record<Field, string>>;
  azureCli: boolean;
  unencrypted: boolean;
  line: string;
  password: string;
}

export const NO_ENTRIES: IEntries = {
  joins: false,
  place: 'file',
  name: '',
  texts: {},
  azureCli: false,
  unencrypted: false,
  line: '',
  password: ''
};

const SETTINGS: Record<Place, Field[]> = {
  file: [],
  s3: ['region', 'endpoint', 'profile'],
  gs: [],
  az: ['account_name', 'endpoint']
};

/** Return the name of a kind of places. */
export function placeLabel(place: Place): string {
  const labels: Record<Place, string> = {
    file: trans.__('Folder'),
    s3: trans.__('Amazon S3 or compatible'),
    gs: trans.__('Google Cloud Storage'),
    az: trans.__('Azure Blob Storage')
  };
  return labels[place];
}

/** Return where the credentials for a kind of places come from: they are never entered. */
export function credentialsText(place: Place): string {
  const texts: Record<Place, string> = {
    file: trans.__(
      'A folder to which this server may write, for example on a disk that several machines share.'
    ),
    s3: trans.__(
      'Keys are not entered here. They come from the profile in ~/.aws/credentials, from the server’s environment (AWS_ACCESS_KEY_ID), or from the role of the machine.'
    ),
    gs: trans.__(
      'Keys are not entered here. They come from the server’s environment (GOOGLE_APPLICATION_CREDENTIALS) or from the role of the machine.'
    ),
    az: trans.__(
      'Keys are not entered here. They come from the server’s environment (AZURE_STORAGE_ACCOUNT_KEY), from the login of the Azure tools, or from the identity of the machine.'
    )
  };
  return texts[place];
}

/** Return the kind of the place: that of a line, which has a URL, or the chosen one. */
export function placeOf(entries: IEntries): Place {
  const scheme = lineOf(entries).split(':')[0];
  return PLACES.find(place => place === scheme) ?? entries.place;
}

/** Return the fields that are shown, in order. A line has the URL. */
export function fieldsOf(entries: IEntries): Field[] {
  const place = placeOf(entries);
  const url: Field[] = place === 'file' ? ['folder'] : ['bucket', 'prefix'];
  return [...(lineOf(entries) ? [] : url), ...SETTINGS[place]];
}

/** Return the label of a field. */
export function fieldLabel(field: Field, place: Place): string {
  const labels: Record<Field, string> = {
    folder: trans.__('Folder'),
    bucket: place === 'az' ? trans.__('Container') : trans.__('Bucket'),
    prefix: trans.__('Prefix (optional)'),
    region: trans.__('Region (optional)'),
    endpoint: trans.__('Endpoint (optional)'),
    profile: trans.__('Profile (optional)'),
    account_name: trans.__('Account')
  };
  return labels[field];
}

/** Return an example of a field's content. */
export function fieldExample(field: Field): string {
  const examples: Partial<Record<Field, string>> = {
    folder: '/mnt/share/kernels',
    endpoint: 'https://storage.example.org'
  };
  return examples[field] ?? '';
}

/** An endpoint on another machine, without encryption. */
const LEAVES_UNENCRYPTED =
  /^http:\/\/(?!(127\.0\.0\.1|localhost|\[::1\])([:/]|$))/;

/** Return whether connections to the endpoint would leave this machine unencrypted. */
export function isUnencrypted(entries: IEntries): boolean {
  return (
    fieldsOf(entries).includes('endpoint') &&
    LEAVES_UNENCRYPTED.test(textOf(entries, 'endpoint'))
  );
}

/** Return the name of the remote: the entered one, or the last part of its place. */
export function nameOf(entries: IEntries): string {
  const line = lineOf(entries);
  const path = line
    ? line.split(/\s/)[0].replace(/%[0-9a-f]{2}/gi, '-')
    : [textOf(entries, 'folder'), textOf(entries, 'bucket')].join('/');
  const last = [...path.split('/'), ...textOf(entries, 'prefix').split('/')]
    .map(part => part.replace(/[^\w.-]+/g, '-').replace(/^[.-]+/, ''))
    .filter(Boolean)
    .pop();
  return entries.name.trim() || (last ?? 'remote').slice(0, 100);
}

/** Return the request for a remote with these entries. */
export function requestOf(entries: IEntries): NewRemote {
  const { joins, azureCli, unencrypted } = entries;
  const place = placeOf(entries);
  const settings = Object.fromEntries(
    SETTINGS[place]
      .map(field => [field, textOf(entries, field)])
      .filter(([, text]) => text)
  );
  if (azureCli && place === 'az') {
    settings.use_azure_cli = 'true';
  }
  if (unencrypted && isUnencrypted(entries)) {
    settings.allow_http = 'true';
  }
  return {
    name: nameOf(entries),
    url: lineOf(entries) ? '' : urlOf(entries),
    settings,
    joins,
    secret: joins
      ? { line: lineOf(entries), password: entries.password }
      : { line: '', password: '' }
  };
}

/** Return what is missing before a request makes sense, in a sentence; '' if nothing is. */
export function missingText(entries: IEntries): string {
  const [first] = fieldsOf(entries);
  if (first === 'folder' && !textOf(entries, 'folder').startsWith('/')) {
    return trans.__('Enter the path of the folder; it begins with “/”.');
  }
  if (first === 'bucket' && !textOf(entries, 'bucket')) {
    return placeOf(entries) === 'az'
      ? trans.__('Enter the name of the container.')
      : trans.__('Enter the name of the bucket.');
  }
  return '';
}

/** Return the sentences about a tested place. */
export function triedTexts(
  { refusals, warnings, has_store }: TriedRemote,
  joins: boolean
): string[] {
  if (refusals.length > 0) {
    return refusals.map(why => trans.__('It cannot be used: %1.', why));
  }
  let first: string;
  if (joins) {
    first = has_store
      ? trans.__('It works: there is a store that can be joined.')
      : trans.__(
          'There is no store to join. Compare the place with the one on a machine that uses it, or create a new store.'
        );
  } else {
    first = has_store
      ? trans.__(
          'There is a store already. Join it with the line of a machine that uses it, or choose another place.'
        )
      : trans.__('It works: a new store can be created there.');
  }
  return [first, ...warnings];
}

/** Return the line by which a store is joined; '' if none was entered. */
function lineOf({ joins, line }: IEntries): string {
  return joins ? line.trim() : '';
}

function urlOf(entries: IEntries): string {
  const place = placeOf(entries);
  const parts =
    place === 'file'
      ? textOf(entries, 'folder').split('/').map(encodeURIComponent)
      : [textOf(entries, 'bucket'), ...textOf(entries, 'prefix').split('/')];
  const [first, ...others] = parts;
  return `${place}://${[first, ...others.filter(Boolean)].join('/')}`;
}

function textOf({ texts }: IEntries, field: Field): string {
  return (texts[field] ?? '').trim();
}
