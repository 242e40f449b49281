package console

import (
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// TestQuoted_AShellReadsTheWordBack has Bash read each word of a command.
func TestQuoted_AShellReadsTheWordBack(t *testing.T) {
	t.Parallel()
	for _, word := range []string{
		"", "plain-1.2:3", "a; rm -rf ~", "$(id) `id` $HOME", "it's", `back\slash`, "a\nb", "\x03\x1b[201~id\n", "tab\t'q' \\ é", "é",
	} {
		line := diagnosis.Quoted(word)
		if strings.ContainsAny(line, "\x03\x1b\n\t") {
			t.Errorf("%q has control characters", line)
		}
		read, err := exec.CommandContext(t.Context(), "bash", "-c", "printf %s "+line).Output()
		if err != nil || string(read) != word {
			t.Errorf("%q is read as %q from %s: %v", word, read, line, err)
		}
	}
}

// If the id were a flag, the copied command could change all jobs.
func TestAction_RefusesAnIDThatIsAFlag(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, nil)
	for _, target := range []string{
		"job-cancel?job=--all", "jobs-cancel?ticked=1&job=j1&job=--all", "retry?job=j1,--all", "work-stall?work=--help", "webhook-replay?webhook=-x",
		"line-cancel?line=--tenant", "line-release?line=l1&job=--help",
	} {
		if w := b.send(http.MethodGet, "/ui/do/"+target, nil); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "is not an id.") {
			t.Errorf("%s is answered %d: %s", target, w.Code, w.Body)
		}
	}
	if asked := b.requests(); len(asked) > 0 {
		t.Errorf("the API was asked %q", asked)
	}
}

// Without script a form is sent to its own URL, which names the same jobs.
func TestAction_NamesAJobOnce(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"POST /v1/admin/pausings": api.OperationPreview{Matched: 2}})
	b.send(http.MethodPost, "/ui/do/jobs-pause?ticked=1&job=j1&job=j2", url.Values{"job": {"j1,j2"}, "ticked": {"1"}})
	asked := b.requests()
	if len(asked) == 0 || !strings.Contains(asked[0], `"job_ids":["j1","j2"]`) {
		t.Errorf("the API was asked %q", asked)
	}
}

func TestAction_GoesBackToAJobAndNowhereElse(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"GET /v1/work/w1": api.WorkItem{}, "POST /v1/admin/work/w1:stall": api.WorkItem{}})
	w := b.send(http.MethodPost, "/ui/do/work-stall", url.Values{"work": {"w1"}, "rev": {"1"}, "job": {"../../v1/x?y"}})
	if to := w.Header().Get("Location"); to != "/ui/jobs/..%2F..%2Fv1%2Fx%3Fy" {
		t.Errorf("it leads to %q", to)
	}
}

func TestSignIn_ALongWayBackDoesNotLoseTheCookie(t *testing.T) {
	t.Parallel()
	b := signingIn(t, &provider{})
	for next, want := range map[string]string{
		"/ui/jobs?q=" + strings.Repeat("x", 380): "/ui/jobs?q=" + strings.Repeat("x", 380), "/ui/jobs?q=" + strings.Repeat("&", 4000): "/ui/",
	} {
		w := b.send(http.MethodGet, "/ui/sign-in/issuer?"+url.Values{"next": {next}}.Encode(), nil)
		cookie := w.Result().Cookies()[0]
		if len(cookie.String()) > 4096 {
			t.Errorf("the cookie has %d bytes", len(cookie.String()))
		}
		w = b.comesBack("/ui/sign-in/callback?error=x&state="+b.console.config.Issuer.(*provider).state, cookie)
		if !strings.Contains(w.Body.String(), `name="next" value="`+want+`"`) {
			t.Errorf("the way back is lost: %s", w.Body)
		}
	}
}
