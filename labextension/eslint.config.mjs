import eslint from '@eslint/js';
import jupyter from '@jupyter/eslint-plugin';
import prettier from 'eslint-plugin-prettier/recommended';
import globals from 'globals';
import tseslint from 'typescript-eslint';

export default tseslint.config(
  { ignores: ['node_modules', 'lib', 'coverage', '.yarn'] },
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
      // The plugins are a few kilobytes that every notebook needs at once; the one dialog is loaded when it is asked for.
      'jupyter/prefer-lazy-imports': 'off',
      curly: 'error',
      eqeqeq: 'error'
    }
  },
  {
    files: ['src/__tests__/**'],
    rules: { 'jupyter/no-untranslated-string': 'off' }
  },
  {
    files: ['*.config.js'],
    languageOptions: { globals: globals.node, sourceType: 'commonjs' }
  },
  { files: ['*.mjs'], languageOptions: { globals: globals.node } }
);
