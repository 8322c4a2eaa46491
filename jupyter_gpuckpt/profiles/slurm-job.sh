#!/bin/bash
# A batch job of Slurm that goes on after preemption and after its time limit, on any node:
#
#   @EXAMPLE@
#
# When Slurm announces the end of the job, the command gets SIGTERM and suspends its kernels. The job is then requeued, and the same
# command continues. After scancel it is not requeued. All nodes need the same data directory (usually in the home directory).
#
#SBATCH --requeue
#SBATCH --open-mode=append
# The time for suspending kernels before the job's time limit, in seconds.
#SBATCH --signal=B:USR1@120

# Exit statuses of a command that was stopped and is continued by the next start.
stopped="@STOPPED@"

is_announced=
announce() {
  is_announced=yes
  # The first step is the command.
  scancel --signal=TERM "$SLURM_JOB_ID.0"
}
trap announce USR1
# Slurm also sends SIGTERM to this shell, which has to see the command's end.
trap : TERM

[[ -z ${SLURM_CPUS_PER_TASK:-} ]] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
# A step of its own gets SIGTERM when the grace time of a preemption begins; this shell gets it when that ends.
srun --nodes=1 --ntasks=1 "$@" &
step=$!
# Signals interrupt `wait`.
while kill -0 "$step" 2>/dev/null; do wait "$step"; done
wait "$step"
status=$?

job=" $(scontrol --oneliner show job "$SLURM_JOB_ID") "
# A preempted job has PreemptTime=<date>; a canceled one is not RUNNING.
[[ $job == *" PreemptTime=2"* ]] && is_announced=yes
if [[ " $stopped " == *" $status "* && $is_announced && $job == *" JobState=RUNNING "* ]]; then
  echo "The job is requeued, and its command will be continued."
  trap - TERM
  # Slurm ends this shell by SIGTERM. If the shell ended before that, the job would be over.
  scontrol requeue "$SLURM_JOB_ID" && sleep 60
fi
exit "$status"
