package console

import (
	"io/fs"
	"regexp"
	"testing"

	"github.com/lucius-project/lucius/internal/musttest"
)

// An area that scrolls sideways must be focusable and have a name. A link must not contain a
// button.
func TestTemplates_AreWithinReachOfTheKeyboard(t *testing.T) {
	t.Parallel()
	templates, err := fs.Glob(files, "templates/*.html")
	if err != nil || len(templates) == 0 {
		t.Fatalf("templates: %v, %v", templates, err)
	}
	box := regexp.MustCompile(`<[^>]*class="scroll[^>]*>`)
	reachable := regexp.MustCompile(`role="region" aria-label="[^"]+" tabindex="0"`)
	nested := regexp.MustCompile(`<a [^>]*>[^<]*{{template "id"`)
	for _, name := range templates {
		text, err := fs.ReadFile(files, name)
		musttest.NoError(t, err)
		for _, tag := range box.FindAll(text, -1) {
			if !reachable.Match(tag) {
				t.Errorf("%s: %s lacks %s", name, tag, reachable)
			}
		}
		if link := nested.Find(text); link != nil {
			t.Errorf("%s: %s puts a button into a link; there is a template for jobs", name, link)
		}
	}
}
