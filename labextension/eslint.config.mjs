import eslint from '@eslint/js';
import jupyter from '@jupyter/eslint-plugin';
import prettier from 'eslint-plugin-prettier/recommended';
import globals from 'globals';
import tseslint from 'typescript-eslint';

/** The rooms of `src` from the top to the bottom, and for each the rooms from which it may import. `index.ts` and what stands beside it is above all. */
const MAY_IMPORT = {
  snapshot: ['kernel', 'remote', 'shared'],
  kernel: ['remote', 'shared'],
  remote: ['shared'],
  machine: ['shared'],
  shared: []
};

/** A room's imports: of its own modules, or of modules of those rooms. */
const roomRule = ([room, below]) => ({
  files: [`src/${room}/**`],
  rules: {
    'no-restricted-imports': [
      'error',
      {
        patterns: [
          {
            regex: `^\\.\\./(?!\\.\\./style/|(${below.join('|') || 'no room'})/)`,
            message: `Modules in src/${room} import from ${['their own room', ...below].join(', ')} only.`
          }
        ]
      }
    ]
  }
});

export default tseslint.config(
  {
    ignores: [
      'node_modules',
      'lib',
      'coverage',
      '.yarn',
      'src/shared/rest-types.ts'
    ]
  },
  eslint.configs.recommended,
  prettier,
  { plugins: { jupyter } },
  ...jupyter.configs.recommended,
  {
    files: ['src/**/*.{ts,tsx}'],
    extends: [...tseslint.configs.recommended],
    languageOptions: {
      globals: globals.browser,
      parserOptions: { project: ['tsconfig.test.json'] }
    },
    rules: {
      '@typescript-eslint/no-explicit-any': 'error',
      '@typescript-eslint/no-floating-promises': 'error',
      '@typescript-eslint/consistent-type-imports': 'error',
      '@typescript-eslint/no-namespace': 'off',
      // The plugins are a few kilobytes that every notebook needs at once.
      'jupyter/prefer-lazy-imports': 'off',
      curly: 'error',
      eqeqeq: 'error'
    }
  },
  {
    files: ['src/__tests__/**'],
    rules: { 'jupyter/no-untranslated-string': 'off' }
  },
  ...Object.entries(MAY_IMPORT).map(roomRule),
  {
    files: ['*.config.js'],
    languageOptions: { globals: globals.node, sourceType: 'commonjs' }
  },
  { files: ['*.mjs'], languageOptions: { globals: globals.node } }
);
