// Writes the digest of everything the bundle is made from beside the bundle, so that a stale bundle can be told
// without building it: tests/packaging/test_bundle_is_fresh.py computes the same digest.

import { createHash } from 'node:crypto';
import { readFileSync, readdirSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const HERE = fileURLToPath(new URL('.', import.meta.url));
const BUNDLE = join(HERE, '..', 'jupyter_gpuckpt', 'labextension');
const SOURCES = [
  'package.json',
  'schema',
  'src',
  'style',
  'tsconfig.json',
  'yarn.lock'
];

/** The files below `path`, tests left out; paths are relative, with slashes. */
function filesBelow(path) {
  if (statSync(join(HERE, path)).isFile()) {
    return [path];
  }
  return readdirSync(join(HERE, path))
    .filter(name => name !== '__tests__' && !name.startsWith('.'))
    .flatMap(name => filesBelow(`${path}/${name}`));
}

const sha256 = data => createHash('sha256').update(data).digest('hex');

// One line per file as sha256sum prints it, with line ends as git stores them.
const lines = SOURCES.flatMap(filesBelow)
  .sort()
  .map(path => {
    const text = readFileSync(join(HERE, path), 'utf8');
    return `${sha256(text.replaceAll('\r\n', '\n'))}  ${path}\n`;
  });
const record = { sha256: sha256(lines.join('')) };
writeFileSync(
  join(BUNDLE, 'source-hash.json'),
  `${JSON.stringify(record, undefined, 2)}\n`
);
