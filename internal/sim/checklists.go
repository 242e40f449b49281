package sim

import (
	"maps"
	"slices"
	"strings"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// checkListed checks that the rows of a job in the lists were written before the commit that
// accepts or ends it.
func (c *checker) checkListed(j *job) {
	for _, key := range j.evidence().ListKeys(auditOptions) {
		if c.rows[key] == nil {
			c.violate("listed", "job %s is %s, and its row %s is missing", j.id, j.row.State, key)
		}
	}
}

// checkIndex checks that the rows of documents and tags stay as long as their job. Like
// noteOutlived, it records those that a late write created after their job was purged, or its
// accept abandoned.
func (c *checker) checkIndex(writes []write) {
	for i := range writes {
		w := &writes[i]
		row := w.op.Properties
		if w.gone() {
			row = w.old
		}
		if undelivered(w.op.Key) {
			c.checkUndelivered(w)
		}
		switch j := c.jobs[row.Get("job_id").String()]; {
		case j == nil || !describes(w.op.Key):
		case w.was && w.gone() && j.exists:
			c.violate("listed", "the row %s of job %s was deleted", w.op.Key, j.id)
		case !w.gone() && c.landing && (j.purged || j.row.Tombstone):
			c.outlived[w.op.Key.String()] = true
		}
	}
}

// describes reports whether a row lists a job by its document or a tag.
func describes(key tablestore.Key) bool {
	return key.Table == tables.Index && (strings.HasPrefix(key.Partition, "doc:") || strings.HasPrefix(key.Partition, "tags:"))
}

// takeDescription copies the document and the tags of a new job, which are those of its command,
// and checks that a change keeps them.
func (c *checker) takeDescription(was, j *job) {
	doc, tags := j.row.Doc, slices.Clone(j.row.Tags)
	if was.exists {
		if doc != j.doc || !slices.Equal(tags, j.tags) {
			c.violate("listed", "job %s had the document %q and the tags %q, and now %q and %q", j.id, j.doc, j.tags, doc, tags)
		}
		return
	}
	j.created, j.tenant, j.doc, j.tags = c.seq, j.row.Tenant, doc, tags
	if occasional(j.row.Correlation) {
		if doc != "" || len(tags) > 0 {
			c.violate("listed", "job %s of a schedule has the document %q and the tags %q", j.id, doc, tags)
		}
		return
	}
	by := ""
	for _, tag := range tags {
		if name, found := strings.CutPrefix(tag, "by="); found {
			by = name
		}
	}
	wantDoc, wantTags := c.w.described(strings.TrimPrefix(j.row.Correlation, "c-"), by)
	if doc != wantDoc || !slices.Equal(linesOf(wantTags), tags) {
		c.violate("listed", "job %s has the document %q and the tags %q, want %q and %v", j.id, doc, tags, wantDoc, wantTags)
	}
}

// linesOf returns tags as "key=value", sorted.
func linesOf(tags map[string]string) []string {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		lines = append(lines, key+"="+tags[key])
	}
	return lines
}

// selects reports whether the job, which may be purged by now, belongs in the list in some state.
func (l *listing) selects(j *job) bool {
	return j.created > 0 && j.tenant == l.tenant && (l.doc == "" || j.doc == l.doc) &&
		!slices.ContainsFunc(l.tags, func(tag string) bool { return !slices.Contains(j.tags, tag) })
}

// answeredPage checks that a page of a list holds only jobs that belong there, as they were accepted.
func (c *checker) answeredPage(l *listing, found *page, err error) {
	if err != nil {
		c.checkRefusal("a list of jobs", err)
		return
	}
	for i := range found.Jobs {
		shown := &found.Jobs[i]
		switch j := c.jobs[shown.JobID]; {
		case j == nil || !l.selects(j), !j.purged && j.stated <= found.began && l.state != "" && l.state != j.row.State:
			c.violate("lists", "job %s is in the list %+v", shown.JobID, *l)
		case shown.TenantID != j.tenant || shown.DocID != j.doc || !slices.Equal(linesOf(shown.Tags), j.tags):
			c.violate("lists", "job %s is shown as %+v", shown.JobID, *shown)
		}
	}
	if len(found.Jobs) > l.limit {
		c.violate("lists", "a page of the list %+v has %d jobs", *l, len(found.Jobs))
	}
}

// answeredList checks that the pages of a list hold, the newest first, every job that belongs
// there since before the first request, and is not purged.
func (c *checker) answeredList(l *listing, began int, ids []string) {
	for _, id := range slices.Sorted(maps.Keys(c.jobs)) {
		j := c.jobs[id]
		since := j.created
		if l.state != "" {
			since = j.stated
		}
		if l.selects(j) && (l.state == "" || l.state == j.row.State) && since <= began && !j.purged && !slices.Contains(ids, id) {
			c.violate("lists", "job %s is not in the list %+v: %v", id, *l, ids)
		}
	}
	for i := range ids[:max(len(ids)-1, 0)] {
		if ledger.ListOrder(ids[i]) >= ledger.ListOrder(ids[i+1]) {
			c.violate("lists", "job %s is before %s in the list %+v", ids[i], ids[i+1], *l)
		}
	}
	c.lists[len(ids)]++
}

// surplusRow describes a row that lists a job by document or tag, and should not exist. The
// entry of an accept leads to its rows. If it crashed after the rows and before the entry, nothing
// does until its command is repeated.
func (c *checker) surplusRow(key tablestore.Key) string {
	row := c.rows[key]
	id := row.Get("job_id").String()
	switch j := c.jobs[id]; {
	case (j == nil || !j.exists) && c.entered[id] && !c.outlived[key.String()]:
		return "row of a job that does not exist:"
	case j != nil && j.exists && (row.Get("doc_id").String() != j.doc || row.Get("tags").String() != strings.Join(j.tags, "\n")):
		return "row that is not as its job is described:"
	}
	return ""
}
