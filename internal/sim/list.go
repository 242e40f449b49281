package sim

import (
	"fmt"
	"hash/fnv"
	"net/url"
	"strconv"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// described returns the document and the tags of a command, by its hash; a quarter of all commands
// have neither. The hash of a real command does not cover the tags, so that repeats by another
// client differ in the tag "by".
func (w *world) described(hash, by string) (doc string, tags map[string]string) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(hash))
	n := h.Sum32() >> 8
	if !w.scenario.described {
		return "", nil
	}
	if n%2 == 1 {
		doc = docs[n/4%4]
	}
	if n/2%2 == 1 {
		tags = map[string]string{"env": envs[n/16%4], "part": partNames[n/64%2], "by": by}
	}
	return doc, tags
}

// docs, envs and partNames are the documents, and the values of two tags.
var (
	docs      = []string{"doc:1", "doc:1", "doc:1", "doc:2"}
	envs      = []string{"prod", "prod", "prod", "test"}
	partNames = []string{"1", "1:2"}
)

// listing is a list of a tenant's jobs by document or tags, and perhaps state.
type listing struct {
	tenant, doc, state string
	tags               []string // each "key=value"
	limit              int
}

// page is a page of a list.
type page struct {
	Jobs []struct {
		JobID    string            `json:"jobId"`
		TenantID string            `json:"tenant_id"`
		DocID    string            `json:"doc_id"`
		Tags     map[string]string `json:"tags"`
	} `json:"jobs"`
	Next  string `json:"next_page_token"`
	began int    // the number of commits before the request
}

// maxPages bounds the pages of a list that a client reads.
const maxPages = 20

// list reads a list of the jobs that share the document, or some tags, of the command, in small
// pages. It gives up if a page is not answered.
func (v *visitor) list(of *command) {
	l := &listing{tenant: of.tenant, limit: 1 + v.rng.IntN(3)}
	doc, tags := v.w.described(of.hash(), v.name)
	if l.doc = doc; tags != nil && (doc == "" || v.chance(70)) {
		l.tags = linesOf(tags)
		v.rng.Shuffle(len(l.tags), func(i, j int) { l.tags[i], l.tags[j] = l.tags[j], l.tags[i] })
		l.tags = l.tags[:1+v.rng.IntN(len(l.tags))]
		if v.chance(70) {
			l.doc = ""
		}
	}
	if l.doc == "" && l.tags == nil {
		return
	}
	if v.chance(30) {
		l.state = string(statemachine.JobStates[v.rng.IntN(len(statemachine.JobStates))])
	}
	query := url.Values{"tenant_id": {l.tenant}, "limit": {strconv.Itoa(l.limit)}, "tag": l.tags}
	if l.doc != "" {
		query.Set("doc_id", l.doc)
	}
	if l.state != "" {
		query.Set("state", l.state)
	}
	var ids []string
	began := 0
	for n := range maxPages {
		value, err := v.retry(3, func() (any, error) {
			return v.ask(fmt.Sprintf("list %+v, page %d", *l, n), nil, func(r *request) (any, error) {
				found := page{began: r.began}
				err := r.get("/v1/jobs?"+query.Encode(), &found)
				return &found, err
			}, func(_ *request, value any, err error) { v.w.check.answeredPage(l, value.(*page), err) })
		})
		if err != nil {
			return
		}
		found := value.(*page)
		for i := range found.Jobs {
			ids = append(ids, found.Jobs[i].JobID)
		}
		if n == 0 {
			began = found.began
		}
		if found.Next == "" {
			v.w.gate.park(&call{actor: v.name, verb: verbLook, detail: "list", exec: func() reply {
				v.w.check.answeredList(l, began, ids)
				return reply{}
			}})
			return
		}
		query.Set("page_token", found.Next)
	}
}
