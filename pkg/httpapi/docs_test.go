package httpapi_test

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/api"
)

func TestTheRootPointsToTheDocumentation(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string]answer{
		"":                  {Status: http.StatusOK, Body: `{"docs":"/docs","openapi":"/openapi.yaml"}`},
		"Accept: */*":       {Status: http.StatusOK, Body: `{"docs":"/docs","openapi":"/openapi.yaml"}`},
		"Accept: text/html": {Status: http.StatusFound},
		"Accept: application/xhtml+xml,text/html;q=0.9,*/*;q=0.8": {Status: http.StatusFound},
	} {
		response := newHarness(t).do(t, http.MethodGet, "/", "", accept)
		location := response.Header.Get("Location")
		if response.Status != want.Status || strings.TrimSpace(response.Body) != want.Body || (location == "/docs") != (want.Body == "") {
			t.Errorf("%q is answered %d %q %s", accept, response.Status, location, response.Body)
		}
	}
}

func TestTheContractIsServedAsAPage(t *testing.T) {
	t.Parallel()
	response := newHarness(t).do(t, http.MethodGet, "/docs", "")
	if response.Body != string(api.Docs()) {
		t.Errorf("got %d bytes, want %d", len(response.Body), len(api.Docs()))
	}
	for name, want := range map[string]string{
		"Content-Type": "text/html; charset=utf-8", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
		"Cache-Control": "no-cache",
	} {
		if got := response.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

// A browser shows the page in full: the policy allows its style, and the page holds
// nothing that the policy forbids.
func TestThePolicyOfThePageAllowsItsStyleAndNothingElse(t *testing.T) {
	t.Parallel()
	response := newHarness(t).do(t, http.MethodGet, "/docs", "")
	directives := map[string]string{}
	for directive := range strings.SplitSeq(response.Header.Get("Content-Security-Policy"), ";") {
		name, sources, _ := strings.Cut(strings.TrimSpace(directive), " ")
		directives[name] = sources
	}
	for _, name := range []string{"default-src", "base-uri", "form-action", "frame-ancestors"} {
		if directives[name] != "'none'" {
			t.Errorf("%s is %q", name, directives[name])
		}
	}
	styles := regexp.MustCompile(`(?s)<style>(.*?)</style>`).FindAllStringSubmatch(response.Body, -1)
	if len(styles) != 1 {
		t.Fatalf("the page has %d styles", len(styles))
	}
	hash := sha256.Sum256([]byte(styles[0][1]))
	if want := "'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'"; directives["style-src"] != want || len(directives) != 5 {
		t.Errorf("the policy is %v, want style-src %s", directives, want)
	}
	for _, forbidden := range []string{
		`(?i)<(script|link|img|iframe|object|embed|form|base)\b`, `(?i)<[^>]*\s(style|src|srcset|on\w+)=`, `(?i)@import|url\(`,
	} {
		if found := regexp.MustCompile(forbidden).FindString(response.Body); found != "" {
			t.Errorf("the page has %q", found)
		}
	}
}
