package console

import (
	"encoding/base64"
	"fmt"
	"html"
	"io/fs"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
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

// A page that is loaded for the first time, with its scripts and styles, and with charts what
// draws them. Lists are as long as pages of them can be, and the history is that of a job with
// many attempts.
func TestPages_AreSmall(t *testing.T) {
	t.Parallel()
	const most = 60 << 10
	var events []api.Event
	for no := range maxHistory / 5 {
		for _, e := range append(ran(float64(10*no), "ocr", no+1), happened(float64(10*no)+3, api.EventTypeStepFailedRetry, "ocr", no+1, "TIMEOUT")) {
			e.EventID = fmt.Sprintf("019bfd1c-%04x-7%03x-a%03x-%012x", len(events)*7919%65536, len(events)%4096, len(events)*31%4096, len(events)*7919)
			events = append(events, e)
		}
	}
	long := runningJob()
	long.JobID = "j3"
	answers := everything()
	for request, answer := range answersOf(long, events...) {
		if strings.Contains(request, "/j3") {
			answers[request] = answer
		}
	}
	var jobs []api.Job
	for i := range pageSize {
		job := runningJob()
		job.JobID = fmt.Sprintf("019bfd1c-%04x-7%03x-a%03x-%012x", i*7919%65536, i, i*31, i*7919)
		jobs = append(jobs, job)
	}
	answers["GET /v1/jobs"] = api.JobPage{Jobs: jobs}
	services := busyServer().Services
	for i := range services {
		services[i].BacklogByMinute = make([]int, diagnosis.HistoryMinutes)
	}
	answers["GET /v1/admin/services"] = api.ServiceList{Services: services}
	b := newBrowser(t, answers)
	sizes := map[string]int{}
	load := func(target string) string {
		w := b.send(http.MethodGet, target, nil, "Accept-Encoding", "gzip")
		sizes[target] = w.Body.Len()
		return b.send(http.MethodGet, target, nil).Body.String()
	}
	assets := regexp.MustCompile(`(?:src|href|data-charts)="(/ui/assets/[^"]+)"`)
	for _, page := range append(allPages(), "jobs/j3") {
		text := load(Path + page)
		size := sizes[Path+page]
		for _, asset := range assets.FindAllStringSubmatch(text, -1) {
			if strings.Contains(asset[1], "uPlot.iife") && !strings.Contains(text, "data-chart=") {
				continue
			}
			if sizes[asset[1]] == 0 {
				load(asset[1])
			}
			size += sizes[asset[1]]
		}
		t.Logf("%-14s %6d bytes, %6d of them the page's own", Path+page, size, sizes[Path+page])
		if size > most {
			t.Errorf("%s%s loads %d bytes", Path, page, size)
		}
	}
}

// What can be filled in can be seen, in both colour schemes, and nothing scrolls that a key does
// not reach. Contrast is computed as WCAG 2 does.
func TestStyles_ShowWhatCanBeFilledIn(t *testing.T) {
	t.Parallel()
	text, err := fs.ReadFile(files, "assets/console.css")
	musttest.NoError(t, err)
	style := string(text)
	if n := strings.Count(style, "overflow-x: auto"); n != 2 {
		t.Errorf("%d styles scroll: only .scroll, and nav with its links, may", n)
	}
	luminance := func(hex string) (sum float64) {
		if len(hex) == 3 {
			hex = string([]byte{hex[0], hex[0], hex[1], hex[1], hex[2], hex[2]})
		}
		value, err := strconv.ParseUint(hex, 16, 32)
		musttest.NoError(t, err)
		for i, share := range []float64{0.0722, 0.7152, 0.2126} {
			channel := float64(value>>(8*i)&255) / 255
			if channel <= 0.04045 {
				channel /= 12.92
			} else {
				channel = math.Pow((channel+0.055)/1.055, 2.4)
			}
			sum += share * channel
		}
		return sum
	}
	schemes := strings.SplitN(style, "prefers-color-scheme: dark", 2)
	for i, scheme := range schemes {
		colour := func(name string) float64 {
			found := regexp.MustCompile("--" + name + `: #([0-9a-f]+);`).FindStringSubmatch(scheme)
			if found == nil {
				t.Fatalf("scheme %d has no %s", i, name)
			}
			return luminance(found[1]) + 0.05
		}
		for _, ground := range []string{"bg", "card"} {
			a, b := colour("edge"), colour(ground)
			if contrast := max(a, b) / min(a, b); contrast < 3 {
				t.Errorf("in scheme %d the border of a field has a contrast of %.2f to %s", i, contrast, ground)
			}
		}
	}
}

func TestFrame_NamesTheEnvironment(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, quiet())
	hasNot(t, b.get(t, "/ui/"), "environment")
	config := b.console.config
	config.Environment, config.Colour = "production <eu>", "red"
	b.console = musttest.Make(t, New, config)
	page := b.get(t, "/ui/")
	has(t, page, "<title>production &lt;eu&gt; · Attention · Lucius</title>", `<header class="top of red">`,
		`<b class="environment">production &lt;eu&gt;</b>`, `<link rel="icon" href="data:image/svg&#43;xml;base64,`)
	icon, err := base64.StdEncoding.DecodeString(regexp.MustCompile(`base64,([^"]*)"`).FindStringSubmatch(html.UnescapeString(page))[1])
	if err != nil || !strings.Contains(string(icon), `fill="#b82525"`) {
		t.Errorf("the icon is %s, %v", icon, err)
	}
	config.Colour = "pink"
	if _, err := New(config); err == nil {
		t.Error("a colour without a style is accepted")
	}
	b.token = "none"
	has(t, b.send(http.MethodGet, "/ui/sign-in", nil).Body.String(), `<b class="environment">`)
}
