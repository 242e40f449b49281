package statemachine

import "fmt"

// Class is the priority of a job's work. Bulk work yields to all other work of its service and
// step type.
type Class string

// The classes. The zero value is normal, so that the rows of most jobs do not name a class.
const (
	ClassNormal Class = ""
	ClassBulk   Class = "bulk"
)

// String returns the name of the class on the wire.
func (c Class) String() string {
	if c == ClassNormal {
		return "normal"
	}
	return string(c)
}

// ParseClass returns the class of that name on the wire, and false if there is none.
func ParseClass(name string) (Class, bool) {
	for _, c := range []Class{ClassNormal, ClassBulk} {
		if c.String() == name {
			return c, true
		}
	}
	return ClassNormal, false
}

// decide sets the class. A directive that waits in the pull queue moves at once; in any other state
// the class counts from the next dispatch.
func (e Prioritize) decide(c *change) {
	job := &c.agg.Job
	switch {
	case job.State.Terminal():
		c.refuse(CodeIllegalTransition, "the job is %s already", job.State)
		return
	case job.Class == e.Class:
		c.duplicate(fmt.Sprintf("the priority is %s already", e.Class))
		return
	}
	c.note(Transition{
		Object: ObjectJob, Type: EventJobPrioritized, From: string(job.State), To: string(job.State),
		Cause:  "priority request" + prefixed(": ", truncate(e.Reason, maxMessage)),
		Detail: fmt.Sprintf("%s to %s", job.Class, e.Class),
	})
	job.Class = e.Class
}
