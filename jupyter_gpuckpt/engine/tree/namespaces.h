/* The functions that gpuckpt-init's parts share; namespaces.c documents them. */

void fail(const char *step) __attribute__((noreturn));
void write_file(const char *path, const char *text);
void default_signals(void);
void close_all(unsigned first, unsigned last);
void end_like(int status) __attribute__((noreturn));

void own_user_namespace(const char *ids);
void keep_capabilities(void);
void drop_capabilities(void);

int enter(char **arguments);
int bind_mount(char **arguments);
