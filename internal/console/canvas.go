package console

import (
	"fmt"
	"math"
	"strings"
)

// The levels of the box in which the shown job is, beside those of trouble: it is under way, has
// succeeded, or ended otherwise.
const (
	levelHere  = "here"
	levelWell  = "ok"
	levelEnded = "idle"
)

// canvas is a diagram: boxes and the arrows between them.
type canvas struct {
	Width, Height int
	Edges         []flowEdge
	Nodes         []flowNode
	Labels        []flowLabel
}

// flowNode is a box with its figures and the page that a click on it opens.
type flowNode struct {
	X, Y, W, H             int
	Title, Big, Text, More string
	Level                  string // of its trouble, or of the shown job if that is there; empty for none
	URL                    string
	Below                  string // the figure at the arrow to the next box, where the boxes form a column
	Parallel               bool   // Nothing goes from it to the next box, or from that to it.
}

// flowEdge is an arrow between boxes. Its width grows with the rate.
type flowEdge struct {
	Path  string
	Tip   string // the arrowhead; empty for none
	Width float64
	Class string // hot if something moves, else the level of what keeps it; "retry" is added on the way of retries
}

// flowLabel is a text beside an arrow.
type flowLabel struct {
	X, Y int
	Text string
	Loop bool // The arrow leads back; a column of boxes does not show it.
}

// The dimensions of the canvas. Jobs come in at the left, go down to where their directives are
// published, through the services side by side, and up to their RESULTs, beside which they end.
// The next step goes back above all boxes, and the next attempt below them.
const (
	flowTop      = 20 // of a protocol's canvas, and where the arrow to the next step turns
	flowFirst    = 54 // the top of the first row
	flowBox      = 96 // the height of most boxes
	flowWide     = 166
	flowGap      = 40   // between boxes of a column, at least
	flowLedger   = 212  // the left of the ledger's column; that of the commands is flowMargin
	flowServices = 442  // the left of the services
	flowWidest   = 300  // the width of a service's box
	flowService  = 52   // its height
	flowRow      = 59   // from one service to the next
	flowResult   = 806  // the left of RESULT's column
	flowEnds     = 1016 // the left of the ends
	flowEndWide  = 178
	flowEnd      = 54 // the height of the box of an end
	flowEndRow   = 66 // from one end to the next
	flowRetry    = 198
	flowMargin   = 10
	mostServices = 8   // If there are more, the quiet ones share a box.
	nameLength   = 26  // Longer names are shortened.
	thinEdge     = 1.2 // the width of an arrow on which nothing moves
	thickEdge    = 7
	edgeTip      = 7
)

// places are the boxes of the canvas, each with its rates.
type places struct {
	commands, checks, ledger, outbox, publish, ack, running, result, retries flowing

	services []flowing
	ends     []flowing
	next     float64 // results per second that lead to a next step
	onward   string  // the label of the arrow to the next step
	lanes    string  // the label above the services
}

// draw lays out the boxes and draws the arrows between them.
func (p *places) draw() canvas {
	stack := len(p.services)*flowRow - (flowRow - flowService)
	height := max(stack, 3*flowBox+2*flowGap)
	c := canvas{Width: flowEnds + flowEndWide + flowMargin, Height: flowFirst + height + 2*flowTop}
	at := func(of *flowing, x, y, w, h int) { of.X, of.Y, of.W, of.H = x, y, w, h }
	row := func(n int) int { return flowFirst + n*(height-flowBox)/2 }
	for i, of := range []*flowing{&p.commands, &p.checks} {
		at(of, flowMargin, row(i), flowWide, flowBox)
	}
	for i, of := range []*flowing{&p.ledger, &p.outbox, &p.publish} {
		at(of, flowLedger, row(i), flowWide, flowBox)
	}
	for i, of := range []*flowing{&p.result, &p.running, &p.ack} {
		at(of, flowResult, row(i), flowWide, flowBox)
	}
	for i := range p.services {
		at(&p.services[i], flowServices, flowFirst+(height-stack)/2+i*flowRow, flowWidest, flowService)
		p.services[i].Parallel = true
	}
	for i := range p.ends {
		at(&p.ends[i], flowEnds, flowFirst+i*flowEndRow, flowEndWide, flowEnd)
		p.ends[i].Parallel = true
	}
	at(&p.retries, c.Width-flowMargin-flowRetry, row(2)+flowBox-flowEnd, flowRetry, flowEnd)

	held := p.outbox.Level // What cannot be published waits here.
	c.upright(&p.commands.flowNode, &p.checks.flowNode, p.checks.arrives, "")
	c.line(&p.checks.flowNode, &p.ledger.flowNode, p.ledger.arrives, "")
	c.upright(&p.ledger.flowNode, &p.outbox.flowNode, p.outbox.arrives, held)
	c.upright(&p.outbox.flowNode, &p.publish.flowNode, p.publish.arrives, held)
	for i := range p.services {
		of := &p.services[i]
		c.curve(p.publish.X+flowWide, apart(&p.publish.flowNode, i, len(p.services)), of.X, of.Y+of.H/2, of.arrives, of.Level)
		c.curve(of.X+of.W, of.Y+of.H/2, p.ack.X, apart(&p.ack.flowNode, i, len(p.services)), of.ends, "")
	}
	c.upright(&p.ack.flowNode, &p.running.flowNode, p.running.arrives, "")
	c.upright(&p.running.flowNode, &p.result.flowNode, p.result.arrives, "")
	for i := range p.ends {
		of := &p.ends[i]
		c.curve(p.result.X+flowWide, apart(&p.result.flowNode, i, len(p.ends)+2), of.X, of.Y+of.H/2, of.arrives, of.Level)
	}
	c.loops(p)
	if len(p.services) > 0 {
		c.Labels = append(c.Labels, flowLabel{X: flowServices, Y: p.services[0].Y - 10, Text: p.lanes})
	}
	shown := []*flowing{&p.commands, &p.checks, &p.ledger, &p.outbox, &p.publish}
	for i := range p.services {
		shown = append(shown, &p.services[i])
	}
	shown = append(shown, &p.ack, &p.running, &p.result, &p.retries)
	for i := range p.ends {
		shown = append(shown, &p.ends[i])
	}
	for _, of := range shown {
		c.Nodes = append(c.Nodes, of.flowNode)
	}
	return c
}

// apart returns where the i-th of n arrows meets a side of the box.
func apart(of *flowNode, i, n int) int { return of.Y + (2*i+1)*of.H/(2*n) }

// loops draws the arrows from RESULT back: to the next step above, and through the waiting
// retries to the next attempt below.
func (c *canvas) loops(p *places) {
	result, retries, outbox := &p.result.flowNode, &p.retries.flowNode, &p.outbox.flowNode
	from, into := result.X+result.W/2, p.ledger.X+p.ledger.W/2
	c.way(fmt.Sprintf("M%d %dV%dH%dV%d", from, result.Y, flowTop, into, p.ledger.Y-edgeTip), tip(into, p.ledger.Y, 0, 1), p.next, "", "")
	c.Labels = append(c.Labels, flowLabel{X: into + 12, Y: flowTop + 18, Text: p.onward, Loop: true})
	turn, y := retries.X-12, retries.Y+retries.H/2
	c.way(fmt.Sprintf("M%d %dH%dV%dH%d", result.X+result.W, result.Y+result.H-8, turn, y, retries.X-edgeTip), tip(retries.X, y, 1, 0),
		p.retries.arrives, "", "retry")
	down, left, again := retries.X+retries.W/2, outbox.X-18, outbox.Y+outbox.H-20
	c.way(fmt.Sprintf("M%d %dV%dH%dV%dH%d", down, retries.Y+retries.H, c.Height-flowTop/2, left, again, outbox.X-edgeTip),
		tip(outbox.X, again, 1, 0), p.retries.ends, "", "retry")
}

// line draws an arrow to the box at the right.
func (c *canvas) line(from, to *flowNode, perSecond float64, level string) {
	c.curve(from.X+from.W, from.Y+from.H/2, to.X, to.Y+to.H/2, perSecond, level)
}

// curve draws an arrow to the right.
func (c *canvas) curve(x, y, toX, toY int, perSecond float64, level string) {
	end := toX - edgeTip
	path := fmt.Sprintf("M%d %dH%d", x, y, end)
	if y != toY {
		middle := (x + end) / 2
		path = fmt.Sprintf("M%d %dC%d %d %d %d %d %d", x, y, middle, y, middle, toY, end, toY)
	}
	c.way(path, tip(toX, toY, 1, 0), perSecond, level, "")
}

// upright draws an arrow to the box above or below.
func (c *canvas) upright(from, to *flowNode, perSecond float64, level string) {
	x, y, toY, dy := from.X+from.W/2, from.Y+from.H, to.Y, 1
	if to.Y < from.Y {
		y, toY, dy = from.Y, to.Y+to.H, -1
	}
	c.way(fmt.Sprintf("M%d %dV%d", x, y, toY-dy*edgeTip), tip(x, toY, 0, dy), perSecond, level, "")
}

// way adds an arrow with that rate. A head that is empty is not drawn.
func (c *canvas) way(path, head string, perSecond float64, level, kind string) {
	if perSecond > 0 {
		level = "hot"
	}
	class := strings.TrimSpace(kind + " " + level)
	c.Edges = append(c.Edges, flowEdge{Path: path, Tip: head, Width: edgeWidth(perSecond), Class: class})
}

// tip returns the head of an arrow that ends at x, y with the direction dx, dy.
func tip(x, y, dx, dy int) string {
	backX, backY := x-dx*(edgeTip+1), y-dy*(edgeTip+1)
	return fmt.Sprintf("M%d %dL%d %dL%d %dZ", x, y, backX-dy*5, backY-dx*5, backX+dy*5, backY+dx*5)
}

// edgeWidth returns the width of an arrow, which grows with the logarithm of the rate.
func edgeWidth(perSecond float64) float64 {
	return math.Round(10*min(thinEdge+1.6*math.Log10(1+10*max(perSecond, 0)), thickEdge)) / 10
}
