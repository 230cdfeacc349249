//! What drivers say of a card's memory and identity, which wgpu does not pass on.

/// Memory of a card's own (of all that it may use where it has none of its own), and its UUID.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryFacts {
    pub total_bytes: u64,
    /// What the driver lets this process take now; `None` for Vulkan without `VK_EXT_memory_budget`.
    pub free_bytes: Option<u64>,
    pub uuid: Option<String>,
}

/// Asks the driver of whatever interface the adapter belongs to.
pub fn memory_facts(adapter: &wgpu::Adapter) -> Option<MemoryFacts> {
    vulkan_facts(adapter).or_else(|| dx12_facts(adapter)).or_else(|| metal_facts(adapter))
}

/// DXGI's budget of the segment that the system calls local. Of a card with next to no memory of its own that is RAM.
#[cfg(windows)]
fn dx12_facts(adapter: &wgpu::Adapter) -> Option<MemoryFacts> {
    // SAFETY: the adapter is only asked and not kept beyond this function.
    let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Dx12>() }?;
    let raw = hal.raw_adapter();
    // SAFETY: a question without operands.
    let about = unsafe { raw.GetDesc1() }.ok()?;
    // The default is the local segment.
    let local = raw.query_video_memory_info(Default::default()).ok()?;
    let own = about.DedicatedVideoMemory as u64;
    let total_bytes = if local.Budget > own { own + about.SharedSystemMemory as u64 } else { own };
    let free_bytes = Some(local.Budget.saturating_sub(local.CurrentUsage).min(total_bytes));
    Some(MemoryFacts { total_bytes, free_bytes, uuid: None })
}

#[cfg(not(windows))]
fn dx12_facts(_adapter: &wgpu::Adapter) -> Option<MemoryFacts> {
    None
}

/// Metal has no budget: what it recommends as a working set is taken for the card's memory, less what this process has taken.
#[cfg(target_vendor = "apple")]
fn metal_facts(adapter: &wgpu::Adapter) -> Option<MemoryFacts> {
    use objc2_metal::MTLDevice;

    // SAFETY: the adapter is only asked and not kept beyond this function.
    let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Metal>() }?;
    let device = hal.raw_device();
    let total_bytes = device.recommendedMaxWorkingSetSize();
    let free_bytes = Some(total_bytes.saturating_sub(device.currentAllocatedSize() as u64));
    Some(MemoryFacts { total_bytes, free_bytes, uuid: None })
}

#[cfg(not(target_vendor = "apple"))]
fn metal_facts(_adapter: &wgpu::Adapter) -> Option<MemoryFacts> {
    None
}

#[cfg(any(windows, target_os = "linux"))]
fn vulkan_facts(adapter: &wgpu::Adapter) -> Option<MemoryFacts> {
    use ash::vk;

    // SAFETY: the adapter is only asked and not kept beyond this function.
    let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = hal.shared_instance().raw_instance();
    let device = hal.raw_physical_device();
    let has_budget = hal.physical_device_capabilities().supports_extension(vk::EXT_MEMORY_BUDGET_NAME);

    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut memory = vk::PhysicalDeviceMemoryProperties2::default();
    if has_budget {
        memory = memory.push_next(&mut budget);
    }
    // SAFETY: the handle belongs to the instance, and the structs are those that the call fills.
    unsafe { instance.get_physical_device_memory_properties2(device, &mut memory) };
    let properties = memory.memory_properties;
    let heaps = &properties.memory_heaps[..(properties.memory_heap_count as usize).min(vk::MAX_MEMORY_HEAPS)];
    let own = heaps.iter().any(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    let counts = |heap: &vk::MemoryHeap| !own || heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL);
    // The largest heap: others of the card are small windows into it or into what the processor sees.
    let (largest, heap) = heaps.iter().enumerate().filter(|(_, heap)| counts(heap)).max_by_key(|(_, heap)| heap.size)?;
    let free = |i: usize| budget.heap_budget[i].saturating_sub(budget.heap_usage[i]).min(heap.size);

    let mut id = vk::PhysicalDeviceIDProperties::default();
    let mut about = vk::PhysicalDeviceProperties2::default().push_next(&mut id);
    // SAFETY: as above.
    unsafe { instance.get_physical_device_properties2(device, &mut about) };
    let uuid = id.device_uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(MemoryFacts { total_bytes: heap.size, free_bytes: has_budget.then(|| free(largest)), uuid: Some(uuid) })
}

#[cfg(not(any(windows, target_os = "linux")))]
fn vulkan_facts(_adapter: &wgpu::Adapter) -> Option<MemoryFacts> {
    None
}
