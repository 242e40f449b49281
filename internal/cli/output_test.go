package cli_test

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/musttest"
)

// Programs read the texts of workers from -o json and -o yaml as they were sent, and a terminal
// that shows them obeys none.
func TestOutput_EscapesControlCharacters(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"x\x1b]0;pwned\x07\x1b[2J", "\u009b2J", "\u0085", "a\u202eb\u2066", "\x00", "\x7f", "a\rb", "a\r\nb", "\ta\t", "a\nb", "a\n\tb\n",
		"a\n\x1b[2Jb\n", "# \x1b", "\x1b: \"'\\", "😀\x1b\U000e0001\ufeff", "- \x07",
	} {
		want := map[string]any{text: []any{text, map[string]any{text: text}, map[string]any{"z": map[string]any{text: []any{1.5, text}}}}}
		for form, read := range map[cli.Output]func([]byte, any) error{
			"json": json.Unmarshal, "yaml": func(out []byte, value any) error { return yaml.Unmarshal(out, value) },
		} {
			var out strings.Builder
			musttest.NoError(t, form.Print(&out, want, nil))
			var got map[string]any
			if err := read([]byte(out.String()), &got); err != nil || !cmp.Equal(want, got) {
				t.Errorf("%s of %q: %v, %q", form, text, err, out.String())
			}
			if controls := strings.ContainsFunc(out.String(), func(r rune) bool {
				return r != '\n' && r != '\t' && unicode.In(r, unicode.Cc, unicode.Bidi_Control)
			}); controls {
				t.Errorf("%s of %q has control characters: %q", form, text, out.String())
			}
		}
	}
	var out strings.Builder
	musttest.NoError(t, new(cli.Output).Print(&out, nil, func(w io.Writer) { fmt.Fprint(w, "job \x1b[2Ja\u009b\n\tb\n") }))
	if want := "job \ufffd[2Ja\ufffd\n\tb\n"; out.String() != want {
		t.Errorf("for people: %q, want %q", out.String(), want)
	}
}
