package sim

// The driver guards MIG with device nodes /dev/nvidia-caps/nvidia-cap<minor>,
// numbered as in /proc/driver/nvidia-caps/mig-minors: two for the machine, then
// nine for each GPU instance there can be, fifteen of those on each GPU.
const (
	CapConfig  = 1 // may create and destroy instances
	CapMonitor = 2 // may look at all instances

	capFirst       = 3
	capsPerGI      = 9
	GIsPerGPU      = 15 // GPU instance ids are 0 to 14
	CIsPerGI       = 8  // compute instance ids are 0 to 7
	GPUsWithMinors = 32 // GPUs mig-minors has numbers for

	// CapFabricIMEX is the node an IMEX daemon needs. It follows all of MIG's.
	CapFabricIMEX = capFirst + GPUsWithMinors*GIsPerGPU*capsPerGI
)

// GICap is the minor of the node of a GPU instance.
func GICap(gpuMinor, gi int) int { return capFirst + (gpuMinor*GIsPerGPU+gi)*capsPerGI }

// CICap is the minor of the node of a compute instance.
func CICap(gpuMinor, gi, ci int) int { return GICap(gpuMinor, gi) + 1 + ci }
